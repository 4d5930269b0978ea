package enisource

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/confirm"
	"github.com/berthnet/berth/test/harness/check"
	"github.com/berthnet/berth/test/harness/sourcetest"
)

// idleSupplier is a supplier whose test hands over addresses itself.
type idleSupplier struct{}

func (idleSupplier) Seed(eni.Inventory)            {}
func (idleSupplier) Run(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
func (idleSupplier) Kick()                         {}
func (idleSupplier) LastError() string             { return "" }
func (idleSupplier) OtherGroups() (enis []string, followed, compared bool) {
	return nil, false, false
}
func (idleSupplier) PrefixDelegation() bool { return false }
func (idleSupplier) Template() string       { return "" }
func (idleSupplier) Why(bool) *source.Exhausted {
	return &source.Exhausted{Reason: Growing, Message: "not yet"}
}

// failingStore is a store that can fail.
type failingStore struct {
	memStore
	err error
}

func (f *failingStore) Save(inv eni.Inventory) error {
	if f.err != nil {
		return f.err
	}
	return f.memStore.Save(inv)
}

// inventoryOf returns an inventory of one ENI.
func inventoryOf(things ...string) eni.Inventory {
	e := eni.ENI{ID: "eni-1", MAC: mac.Addr{2, 0, 0, 0, 0, 1}, DeviceIndex: 1, Serves: true}
	for _, p := range prefixes(things...) {
		if p.IsSingleIP() {
			e.Addresses = append(e.Addresses, p.Addr())
		} else {
			e.Prefixes = append(e.Prefixes, p)
		}
	}
	return eni.Inventory{InstanceID: instance, ENIs: []eni.ENI{e}}
}

func prefixes(things ...string) (out []netip.Prefix) {
	for _, t := range things {
		if a, err := netip.ParseAddr(t); err == nil {
			out = append(out, netip.PrefixFrom(a, 32))
		} else {
			out = append(out, netip.MustParsePrefix(t))
		}
	}
	return out
}

func supplied(t *testing.T, store InventoryStore) *Source {
	t.Helper()
	s := stopped(t, store)
	go func() { _ = s.Run(t.Context()) }()
	synctest.Wait()
	return s
}

// stopped is supplied for a source that does not run yet.
func stopped(t *testing.T, store InventoryStore) *Source {
	t.Helper()
	s, err := NewSupplied(Options{
		InstanceID: instance, Datapath: newLinks(), Cooling: 30 * time.Second, Store: store,
	}, idleSupplier{})
	check.OK(t, err)
	return s
}

// offer hands an inventory over, and checks what the supplier may take.
func offer(t *testing.T, s *Source, inv eni.Inventory, back []string, want ...string) {
	t.Helper()
	got, err := s.Offer(inv, prefixes(back...))
	if err != nil || !slices.Equal(got, prefixes(want...)) {
		t.Errorf("withdrawn %v, %v; want %v", got, err, want)
	}
	synctest.Wait()
}

// take returns the next address; zero: no address is free at once.
func take(t *testing.T, s *Source, i int) netip.Addr {
	t.Helper()
	l, _ := sourcetest.Try(t, s, sourcetest.Request(i), time.Millisecond)
	return l.IPv4
}

// wantTaken takes the next address and compares it; empty: no address is free at once.
func wantTaken(t *testing.T, s *Source, i int, want string) {
	t.Helper()
	if a := take(t, s, i); a.IsValid() != (want != "") || a.IsValid() && a.String() != want {
		t.Errorf("pod %d got %v, want %q", i, a, want)
	}
}

func TestOfferWithholdsAddressesToRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := supplied(t, &memStore{})
		all := inventoryOf("10.0.0.1", "10.0.0.2", "10.0.0.3")
		offer(t, s, all, nil)
		first := take(t, s, 1)
		offer(t, s, all, []string{"10.0.0.1", "10.0.0.2"}, "10.0.0.2")
		wantTaken(t, s, 2, "10.0.0.3")
		wantTaken(t, s, 3, "")
		s.Release(key(1))
		offer(t, s, all, []string{"10.0.0.1", "10.0.0.2"}, "10.0.0.2") // the other cools
		time.Sleep(31 * time.Second)                                   //nolint:forbidigo // virtual time, in a synctest bubble
		wantTaken(t, s, 3, "")
		offer(t, s, all, []string{"10.0.0.1", "10.0.0.2"}, "10.0.0.1", "10.0.0.2")
		offer(t, s, all, []string{"10.0.0.2"}, "10.0.0.2") // one stays after all
		check.Equal(t, take(t, s, 3), first, "the next address")
		offer(t, s, inventoryOf("10.0.0.1", "10.0.0.3"), nil) // the other went
		wantTaken(t, s, 4, "")
	})
}

// An address that is asked back before its data path is ready is not handed out because of that.
func TestOfferOfUnprogrammedAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := supplied(t, &memStore{})
		offer(t, s, inventoryOf("10.0.0.1"), nil)
		take(t, s, 1)
		offer(t, s, inventoryOf("10.0.0.1", "10.0.0.2", "10.0.1.0/28"), []string{"10.0.0.2", "10.0.1.0/28"}, "10.0.0.2", "10.0.1.0/28")
		wantTaken(t, s, 2, "")
		uses, waiting := s.Uses()
		if len(uses) != 1 || uses[0].Pod.Name != "pod1" || uses[0].ENI != "eni-1" || !uses[0].Listed || waiting != 0 {
			t.Errorf("uses: %+v, %d wait", uses, waiting)
		}
	})
}

// Nothing counts as withdrawn, and nothing becomes free, before it is in the file.
func TestOfferThatCannotBeRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &failingStore{}
		s := supplied(t, store)
		all := inventoryOf("10.0.0.1", "10.0.0.2")
		offer(t, s, all, []string{"10.0.0.1"}, "10.0.0.1")
		store.err = errors.New("no space left")
		if _, err := s.Offer(all, nil); err == nil {
			t.Error("a failure went unnoticed")
		}
		if _, err := s.Offer(all, prefixes("10.0.0.2")); err == nil {
			t.Error("a failure went unnoticed")
		}
		wantTaken(t, s, 1, "")
		store.err = nil
		offer(t, s, all, []string{"10.0.0.2"}, "10.0.0.2")
		wantTaken(t, s, 1, "10.0.0.1")
	})
}

// What was withdrawn stays withdrawn over a restart, until the supplier says otherwise.
func TestWithdrawnOverARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &memStore{}
		all := inventoryOf("10.0.0.1", "10.0.0.2")
		s := supplied(t, store)
		offer(t, s, all, []string{"10.0.0.1"}, "10.0.0.1")
		s = supplied(t, store)
		time.Sleep(confirm.Timeout) //nolint:forbidigo // virtual time, in a synctest bubble
		wantTaken(t, s, 1, "10.0.0.2")
		wantTaken(t, s, 2, "")
		offer(t, s, all, nil)
		wantTaken(t, s, 2, "10.0.0.1")
	})
}

// Addresses that had cooled before a restart come after those that were never used, with and without a
// stored inventory.
func TestOrderOfFreedomOutlastsARestart(t *testing.T) {
	for _, stored := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			store := &memStore{}
			all := inventoryOf("10.0.0.1", "10.0.0.2", "10.0.0.3")
			offer(t, supplied(t, store), all, nil)
			if !stored {
				store = &memStore{}
			}
			s := supplied(t, store)
			for i, a := range []string{"10.0.0.2", "10.0.0.1"} {
				s.RestoreCooling(netip.MustParseAddr(a), time.Now().Add(time.Duration(i)-time.Hour))
			}
			offer(t, s, all, nil)
			for i, want := range []string{"10.0.0.3", "10.0.0.2", "10.0.0.1"} {
				wantTaken(t, s, i, want)
			}
		})
	}
}

// The part of the snapshot that only this source has: its ENIs by device index, with the used addresses
// of each, in the document and as a gauge.
func TestSnapshotDescribesENIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := supplied(t, &memStore{})
		inv := inventoryOf("10.0.0.7", "10.0.1.0/28")
		inv.ENIs[0].SubnetID, inv.Limits.IPv4PerENI = "subnet-1", 10
		inv.ENIs = append(inv.ENIs, eni.ENI{ID: "eni-0", Primary: true, MAC: mac.Addr{2, 0, 0, 0, 0, 9}})
		check.OK(t, (*reconcilerNode)(s).Publish(t.Context(), inv))
		synctest.Wait()
		lease, err := s.Acquire(t.Context(), source.Request{Key: key(0)})
		if err != nil || lease.ENI != "eni-1" || lease.Uplink != 1 {
			t.Fatalf("lease %+v, %v", lease, err)
		}
		snap := s.Snapshot()
		var got introspect.Document
		snap.Detail.Describe(&got)
		want := []introspect.ENI{
			{ID: "eni-0", Primary: true, MAC: "02:00:00:00:00:09", Reason: "its device index is below first-interface-index"},
			{ID: "eni-1", DeviceIndex: 1, MAC: "02:00:00:00:00:01", Subnet: "subnet-1", Ready: true, Capacity: 9, Used: 1, Prefixes: 1},
		}
		check.Same(t, got.ENIs, want)
		if g := []source.Group{{Name: "eni-0"}, {Name: "eni-1", Uplink: 1, Capacity: 9}}; !slices.Equal(snap.Groups, g) {
			t.Errorf("groups %+v, want %+v", snap.Groups, g)
		}
		var gauge dto.Metric
		if err := snap.Detail.Metrics()[0].Write(&gauge); err != nil || gauge.Gauge.GetValue() != 2 {
			t.Errorf("berth_enis is %v, %v", gauge.Gauge, err)
		}
	})
}

// No pod gets an address that the node itself has, single or in a prefix, and others are asked for in
// its place. A waiting pod gets it when the node no longer has it.
func TestAddressesThatTheNodeHas(t *testing.T) {
	for name, tc := range map[string]struct {
		policy        ipam.Policy
		before, after string // the layout
	}{
		"at the limit": {ipam.Policy{MinimumIP: 3, MaxENI: 1}, "3", "3"},
		"replaced":     {ipam.Policy{WarmIP: 1, MaxENI: 1}, "1", "2"},
		"of a prefix":  {ipam.Policy{WarmIP: 16, PrefixDelegation: true, MaxENI: 1}, "16", "32"},
	} {
		t.Run(name, inBubble("t3.small", tc.policy, func(t *testing.T, n *node) {
			n.startAndSettle(time.Second)
			n.wantLayout(tc.before)
			var warm []netip.Addr
			for _, a := range n.Snapshot().Addresses {
				warm = append(warm, a.Addr)
			}
			has := append(warm[:1:1], netip.MustParseAddr("192.0.2.1"))
			if kept := n.Withhold(has); len(kept) != 1 || kept[0] != warm[0] {
				t.Errorf("withheld %v, want %s", kept, warm[0])
			}
			if kept := n.Withhold(has); len(kept) != 1 || kept[0] != warm[0] {
				t.Errorf("withheld %v the second time, want %s", kept, warm[0])
			}
			n.settle(time.Minute)
			n.wantLayout(tc.after)
			check.Equal(t, n.Snapshot().Count[source.Withdrawn], 1, "addresses are not handed out")
			if uses, _ := n.Uses(); len(uses) != 1 || uses[0].Addr != warm[0] || uses[0].Cooling || !uses[0].Listed {
				t.Errorf("the uses reported to the operator are %+v", uses)
			}
			for i := 0; ; i++ {
				l, err := n.try(i, time.Minute)
				if err != nil {
					break
				}
				if l.IPv4 == warm[0] {
					t.Fatalf("pod %d got %s, which the node has", i, l.IPv4)
				}
			}
			check.Equal(t, n.links.dumps, 1, "dumps of the node's links, of which none was reported as changed")
			n.Withhold(nil)
			check.Equal(t, n.add(100, time.Minute).IPv4, warm[0], "the pod that waited got")
			n.check()
		}))
	}
}

func TestMetricsAreRegistered(t *testing.T) {
	r := prometheus.NewRegistry()
	m := NewMetrics(r)
	m.Call("AssignPrivateIpAddresses", "OK", 0)
	m.Limited("AssignPrivateIpAddresses", 0)
	passes := m.Reconciler()
	passes.Acted(plan.Action{}, cloud.Throttled, errors.New("slower"), 0)
	passes.Reconciled(0)
	passes.Reconciled(0)
	passes.Collected(eni.Collected{Known: true, Waiting: 1, Kept: 2, Refused: 3, Deleted: 4})
	passes.Collected(eni.Collected{Deleted: 1, Paused: true}) // of the others nothing new is known
	want := map[string]float64{
		`berth_ec2_calls_total{code="OK",operation="AssignPrivateIpAddresses"}`: 1,
		`berth_ec2_call_duration_seconds{operation="AssignPrivateIpAddresses"}`: 1,
		`berth_ec2_limiter_wait_seconds{operation="AssignPrivateIpAddresses"}`:  1,
		`berth_orphan_enis{state="kept"}`:                                       2,
		`berth_orphan_enis{state="refused"}`:                                    3,
		`berth_orphan_enis{state="waiting"}`:                                    1,
		`berth_orphan_enis_deleted_total{}`:                                     5,
		`berth_reconciles_total{result="success"}`:                              1,
		`berth_reconciles_total{result="throttled"}`:                            1,
	}
	check.Same(t, sourcetest.Values(t, r, Reference), want)
}
