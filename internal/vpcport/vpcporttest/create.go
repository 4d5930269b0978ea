package vpcporttest

import (
	"testing"

	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/vpcport"
)

// A new port is as requested, and replies are in the order of the requests.
func create(t *testing.T, b Bed) {
	want := []vpcport.NewPort{b.newPort(t, 0), b.newPort(t, 1), b.newPort(t, 2)}
	want[1].Groups = []string{b.Group}
	if b.Provider.Traits().ChosenMAC {
		want[2].MAC = aMAC(t, 2)
	}
	want = want[:min(len(want), b.Provider.Traits().MaxBatch)]
	seen := map[string]bool{}
	for i, p := range b.create(t, want) {
		if p.ID == "" || seen[p.ID] {
			t.Errorf("port %d: the ID %q", i, p.ID)
		}
		seen[p.ID] = true
		b.asAsked(t, want[i], p)
	}
}

// asAsked checks a port that was made and not bound.
func (b Bed) asAsked(t *testing.T, want vpcport.NewPort, p vpcport.Port) {
	t.Helper()
	if p.NetworkID != b.Network || p.Name != want.Name || p.Device != want.Device || p.Owner != vpcport.Owner {
		t.Errorf("asked for %+v, got %+v", want, p)
	}
	if len(p.Addresses) != 1 || p.Addresses[0].SubnetID != b.Subnet || !b.CIDR.Contains(p.Addresses[0].IP) {
		t.Errorf("%s: the addresses %v, want one of %v", p.Name, p.Addresses, b.CIDR)
	}
	if len(p.MAC) != 6 || p.MAC[0]&1 != 0 || want.MAC != nil && p.MAC.String() != want.MAC.String() {
		t.Errorf("%s: the MAC address %v, asked for %v", p.Name, p.MAC, want.MAC)
	}
	if p.Host != "" || p.Binding.Result != vpcport.Unbound || p.Status == vpcport.StatusActive {
		t.Errorf("%s: at host %q, %+v, status %v; want it bound to none", p.Name, p.Host, p.Binding, p.Status)
	}
	if want.Groups != nil && (len(p.Groups) != 1 || p.Groups[0] != b.Group) {
		t.Errorf("%s: the groups %v, want %v", p.Name, p.Groups, want.Groups)
	}
	if b.Provider.Traits().Revisions && p.Revision == 0 {
		t.Errorf("%s: no revision", p.Name)
	}
}

// A port can be bound in the call that makes it.
func createBound(t *testing.T, b Bed) {
	p := b.made(t, func(n *vpcport.NewPort) { n.Host = b.Host })
	if p.Host != b.Host || !b.plugs(p) {
		t.Errorf("got %q, %+v; want it bound to %q, to be plugged by %+v", p.Host, p.Binding, b.Host, b.Plug)
	}
}

// A given address can be requested once.
func createAt(t *testing.T, b Bed) {
	at := func(n *vpcport.NewPort) { n.Addresses[0].IP = b.Free }
	p := b.made(t, at)
	if len(p.Addresses) != 1 || p.Addresses[0].IP != b.Free {
		t.Errorf("got %v, want %v", p.Addresses, b.Free)
	}
	second := b.newPort(t, 1)
	at(&second)
	_, err := b.Provider.Create(t.Context(), []vpcport.NewPort{second})
	wantClass(t, "the same address again", err, vpcport.AddressTaken)
}

// A refused request leaves no ports.
func createAllOrNothing(t *testing.T, b Bed) {
	if b.Provider.Traits().MaxBatch < 3 {
		return // requests are for one port
	}
	want := []vpcport.NewPort{b.newPort(t, 0), b.newPort(t, 1), b.newPort(t, 2)}
	want[2].Addresses[0].SubnetID = b.Absent
	_, err := b.Provider.Create(t.Context(), want)
	wantClass(t, "a subnet that is not there, the third of three", err, vpcport.ReferenceGone)
	if left := b.ids(t, vpcport.Filter{Devices: []string{want[0].Device, want[1].Device, want[2].Device}}); len(left) != 0 {
		t.Errorf("left are %v", left)
	}
}

// Each invalid request has the right class.
func createRefuses(t *testing.T, b Bed) {
	outside := b.CIDR.Addr().Prev()
	for _, tc := range []struct {
		name string
		edit func(*vpcport.NewPort)
		want vpcport.Class
	}{
		{"no network", func(n *vpcport.NewPort) { n.NetworkID = b.Absent }, vpcport.NetworkGone},
		{"no subnet", func(n *vpcport.NewPort) { n.Addresses[0].SubnetID = b.Absent }, vpcport.ReferenceGone},
		{"no group", func(n *vpcport.NewPort) { n.Groups = []string{b.Absent} }, vpcport.ReferenceGone},
		{"an address outside its subnet", func(n *vpcport.NewPort) { n.Addresses[0].IP = outside }, vpcport.Invalid},
	} {
		n := b.newPort(t, 0)
		tc.edit(&n)
		_, err := b.Provider.Create(t.Context(), []vpcport.NewPort{n})
		wantClass(t, tc.name, err, tc.want)
	}
	if left := b.ids(t, vpcport.Filter{Devices: []string{b.device(t, 0)}}); len(left) != 0 {
		t.Errorf("left are %v", left)
	}
}

// The provider refuses a second port with the MAC address of the first. This keeps a NIC from having two
// ports.
func macTaken(t *testing.T, b Bed) {
	if !b.Provider.Traits().ChosenMAC {
		return // MAC addresses cannot be requested
	}
	with := func(n *vpcport.NewPort) { n.MAC = aMAC(t, 0) }
	first := b.made(t, with)
	second := b.newPort(t, 1)
	with(&second)
	_, err := b.Provider.Create(t.Context(), []vpcport.NewPort{second})
	wantClass(t, "the same MAC address again", err, vpcport.MACTaken)
	if got := b.ids(t, vpcport.Filter{NetworkID: b.Network, MACs: []mac.Addr{aMAC(t, 0)}}); len(got) != 1 || got[0] != first.ID {
		t.Errorf("with the MAC address there are %v, want %s", got, first.ID)
	}
}

// A full subnet has its own class, and has room again once a port is deleted.
func subnetFull(t *testing.T, b Bed) {
	small := func(n *vpcport.NewPort) { n.Addresses[0].SubnetID = b.Small }
	var all []vpcport.Port
	for n := range b.Room {
		want := b.newPort(t, n)
		small(&want)
		all = append(all, b.create(t, []vpcport.NewPort{want})...)
	}
	more := b.newPort(t, b.Room)
	small(&more)
	_, err := b.Provider.Create(t.Context(), []vpcport.NewPort{more})
	wantClass(t, "one more than there is room for", err, vpcport.SubnetFull)
	if err := b.Provider.Delete(t.Context(), all[0].ID); err != nil {
		t.Fatal(err)
	}
	b.create(t, []vpcport.NewPort{more})
}

func quota(t *testing.T, b Bed) {
	if b.SetQuota == nil {
		return // there is no quota
	}
	b.SetQuota(t, 1)
	b.made(t)
	_, err := b.Provider.Create(t.Context(), []vpcport.NewPort{b.newPort(t, 1)})
	wantClass(t, "one more than the quota", err, vpcport.OverQuota)
}

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
