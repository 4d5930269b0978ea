package vpcporttest

import (
	"testing"

	"github.com/berthnet/berth/internal/vpcport"
)

// update changes a port that must be there.
func (b Bed) update(t *testing.T, p vpcport.Port, c vpcport.Change) vpcport.Port {
	t.Helper()
	out, err := b.Provider.Update(t.Context(), p.ID, p.Revision, c)
	if err != nil {
		t.Fatalf("changing port %s: %v", p.ID, err)
	}
	if out.ID != p.ID || b.Provider.Traits().Revisions && out.Revision == p.Revision {
		t.Errorf("changed %s, revision %d; got %s, revision %d", p.ID, p.Revision, out.ID, out.Revision)
	}
	return out
}

// A port is bound to a host, describes how to plug it, and is unbound.
func bind(t *testing.T, b Bed) {
	p := b.made(t)
	none := ""
	bound := b.update(t, p, vpcport.Change{Host: &b.Host})
	if bound.Host != b.Host || !b.plugs(bound) {
		t.Errorf("got %q, %+v; want it bound to %q, to be plugged by %+v", bound.Host, bound.Binding, b.Host, b.Plug)
	}
	if bound.Status == vpcport.StatusActive && !b.NoPlugging {
		t.Error("it is active and was plugged nowhere")
	}
	seen, err := b.Provider.Get(t.Context(), p.ID)
	if err != nil {
		t.Fatal(err)
	}
	if seen.Host != b.Host || seen.Binding != bound.Binding {
		t.Errorf("the answer has %q, %+v, a look %q, %+v", bound.Host, bound.Binding, seen.Host, seen.Binding)
	}
	free := b.update(t, seen, vpcport.Change{Host: &none})
	if free.Host != "" || free.Binding.Result != vpcport.Unbound {
		t.Errorf("let go: at %q, %+v", free.Host, free.Binding)
	}
}

// Binding to a host without an agent is no error; the reply has BindingFailed, and the port can be bound
// again.
func bindingFails(t *testing.T, b Bed) {
	p := b.made(t)
	failed := b.update(t, p, vpcport.Change{Host: &b.NoHost})
	if failed.Binding.Result != vpcport.BindingFailed {
		t.Errorf("at %q: %+v, want it to have failed", b.NoHost, failed.Binding)
	}
	bound := b.update(t, failed, vpcport.Change{Host: &b.Host})
	if bound.Binding.Result != vpcport.Bound {
		t.Errorf("at %q after that: %+v", b.Host, bound.Binding)
	}
}

// A change keeps all properties that it does not have.
func change(t *testing.T, b Bed) {
	p := b.made(t, func(n *vpcport.NewPort) { n.Host = b.Host })
	device := b.device(t, 7)
	p1 := b.update(t, p, vpcport.Change{Device: &device, Groups: []string{b.Group}})
	if p1.Device != device || len(p1.Groups) != 1 || p1.Groups[0] != b.Group {
		t.Errorf("got %+v", p1)
	}
	if p1.Host != b.Host || p1.Owner != p.Owner || p1.Name != p.Name || p1.Binding.Result != vpcport.Bound {
		t.Errorf("before %+v\nafter  %+v", p, p1)
	}
	if got := b.ids(t, vpcport.Filter{Devices: []string{device}}); len(got) != 1 || got[0] != p.ID {
		t.Errorf("by its new device: %v, want %s", got, p.ID)
	}
	none := ""
	p2 := b.update(t, p1, vpcport.Change{Device: &none, Owner: &none, Host: &none})
	if p2.Device != "" || p2.Owner != "" || p2.Host != "" {
		t.Errorf("let go: %+v", p2)
	}
	_, err := b.Provider.Update(t.Context(), p.ID, 0, vpcport.Change{Groups: []string{b.Absent}})
	wantClass(t, "a group that is not there", err, vpcport.ReferenceGone)
}

// A change does not overwrite later changes of other clients.
func stale(t *testing.T, b Bed) {
	if !b.Provider.Traits().Revisions {
		return // without revisions they cannot be detected
	}
	p := b.made(t)
	theirs, ours := b.device(t, 8), b.device(t, 9)
	b.update(t, p, vpcport.Change{Device: &theirs})
	_, err := b.Provider.Update(t.Context(), p.ID, p.Revision, vpcport.Change{Device: &ours})
	wantClass(t, "a change of an old state", err, vpcport.Stale)
	now, err := b.Provider.Get(t.Context(), p.ID)
	if err != nil {
		t.Fatal(err)
	}
	if now.Device != theirs {
		t.Errorf("the device is %q, want %q", now.Device, theirs)
	}
	if _, err := b.Provider.Update(t.Context(), p.ID, 0, vpcport.Change{Device: &ours}); err != nil {
		t.Errorf("a change in any case: %v", err)
	}
}

func gone(t *testing.T, b Bed) {
	_, err := b.Provider.Update(t.Context(), b.Absent, 0, vpcport.Change{Host: &b.Host})
	wantClass(t, "a change of a port that is not there", err, vpcport.PortGone)
}

// Deleting a port that does not exist is no error.
func remove(t *testing.T, b Bed) {
	p := b.made(t, func(n *vpcport.NewPort) { n.Host = b.Host })
	for _, when := range []string{"bound", "gone"} {
		if err := b.Provider.Delete(t.Context(), p.ID); err != nil {
			t.Errorf("deleting a port that is %s: %v", when, err)
		}
	}
	_, err := b.Provider.Get(t.Context(), p.ID)
	wantClass(t, "a look at it", err, vpcport.PortGone)
	if left := b.ids(t, vpcport.Filter{Devices: []string{p.Device}}); len(left) != 0 {
		t.Errorf("left are %v", left)
	}
}
