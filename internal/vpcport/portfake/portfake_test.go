package portfake_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/vpcport"
	"github.com/berthnet/berth/internal/vpcport/portfake"
	"github.com/berthnet/berth/internal/vpcport/vpcporttest"
)

// filled returns a provider with a network, a group and a host.
func filled(o portfake.Options) *portfake.Provider {
	p, _ := vpcporttest.InMemory(o)
	return p
}

func TestContract(t *testing.T) {
	vpcporttest.Run(t, func(*testing.T) vpcporttest.Bed { _, bed := vpcporttest.InMemory(portfake.Options{}); return bed })
}

// The contract holds without revisions, batches and chosen MAC addresses.
func TestContractWithFewTraits(t *testing.T) {
	vpcporttest.Run(t, func(*testing.T) vpcporttest.Bed {
		_, bed := vpcporttest.InMemory(portfake.Options{Traits: vpcport.Traits{MaxBatch: 1, MaxFilter: 8}})
		return bed
	})
}

// A port becomes active only if it is plugged after it was bound, as with OVN.
func TestBindBeforePlug(t *testing.T) {
	p := filled(portfake.Options{})
	p.AddHost("node-b", vpcport.Plug{Kind: vpcport.OVS, Bridge: "br-int", OVN: true})
	node, other := "node-a", "node-b"
	status := func(id string) vpcport.Status { o, _ := p.Get(t.Context(), id); return o.Status }
	made, err := p.Create(t.Context(), []vpcport.NewPort{{NetworkID: "n-1", Device: "a"}, {NetworkID: "n-1", Device: "b"}})
	if err != nil {
		t.Fatal(err)
	}
	first, second := made[0].ID, made[1].ID
	p.Plug(first, node)
	if _, err := p.Update(t.Context(), first, 0, vpcport.Change{Host: &node}); err != nil || status(first) == vpcport.StatusActive {
		t.Errorf("plugged, then bound: %v, status %v", err, status(first))
	}
	if _, err := p.Update(t.Context(), second, 0, vpcport.Change{Host: &node}); err != nil {
		t.Fatal(err)
	}
	p.Plug(second, other)
	if status(second) == vpcport.StatusActive {
		t.Error("active, and plugged at another host")
	}
	p.Plug(second, node)
	if status(second) != vpcport.StatusActive {
		t.Error("not active, and plugged where it is bound")
	}
	if _, err := p.Update(t.Context(), second, 0, vpcport.Change{Host: &other}); err != nil || status(second) == vpcport.StatusActive {
		t.Errorf("active, and bound to another host: %v", err)
	}
}

// A call whose reply is lost took effect. A fault ends after its number of calls.
func TestFaults(t *testing.T) {
	p := filled(portfake.Options{})
	p.Front.Inject(portfake.Fault{Op: "Create", Skip: 1, Times: 1, Err: portfake.Err(vpcport.Transient), After: true})
	for i, want := range []vpcport.Class{vpcport.Unknown, vpcport.Transient, vpcport.Unknown} {
		if _, err := p.Create(t.Context(), []vpcport.NewPort{{NetworkID: "n-1"}}); vpcport.ClassOf(err) != want {
			t.Errorf("call %d: %v", i, err)
		}
	}
	if n := len(p.All()); n != 3 {
		t.Errorf("%d ports, want that of the lost reply too", n)
	}
	if got := p.Front.Count("Create"); got != 3 || p.Front.Count("Delete") != 0 {
		t.Errorf("counted %d calls", got)
	}
}

// Calls have a latency and a limit of concurrency; a cancelled call frees its place.
func TestLatencyAndConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := filled(portfake.Options{Latency: 400 * time.Millisecond, AtOnce: 8})
		began := time.Now()
		done := make(chan error)
		for range 32 {
			go func() { _, err := p.Get(t.Context(), "none"); done <- err }()
		}
		synctest.Wait() // eight are worked on, the others wait
		hurried, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := p.Get(hurried, "none"); vpcport.ClassOf(err) != vpcport.Transient {
			t.Errorf("given up: %v", err)
		}
		for range 32 {
			if err := <-done; vpcport.ClassOf(err) != vpcport.PortGone {
				t.Error(err)
			}
		}
		if took := time.Since(began); took != 1600*time.Millisecond {
			t.Errorf("32 calls, 8 at once, took %v", took)
		}
	})
}

// A listing may be older than the reply of Get.
func TestLag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := filled(portfake.Options{Lag: 5 * time.Second})
		seen := func() int {
			ports, err := p.Ports(t.Context(), vpcport.Filter{NetworkID: "n-1"})
			if err != nil {
				t.Fatal(err)
			}
			return len(ports)
		}
		made, err := p.Create(t.Context(), []vpcport.NewPort{{NetworkID: "n-1"}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Get(t.Context(), made[0].ID); err != nil || seen() != 0 {
			t.Errorf("a look: %v; listed are %d", err, seen())
		}
		time.Sleep(5 * time.Second) //nolint:forbidigo // virtual time
		if seen() != 1 {
			t.Error("not listed after the lag")
		}
		p.Remove(made[0].ID)
		if seen() != 1 {
			t.Error("gone from the listing at once")
		}
		time.Sleep(5 * time.Second) //nolint:forbidigo // virtual time
		if seen() != 0 {
			t.Error("listed for ever")
		}
	})
}
