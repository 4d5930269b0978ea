package enisource

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/test/harness/check"
)

var own = netip.MustParseAddr("10.0.0.9")

// withOwnAddress is inventoryOf with the ENI's own address, which may be for pods.
func withOwnAddress(forPods bool) eni.Inventory {
	inv := inventoryOf("10.0.0.1")
	if forPods {
		inv = inventoryOf("10.0.0.1", own.String())
	}
	inv.ENIs[0].PrimaryIPv4 = own
	return inv
}

func (l *links) addresses(id string) []netip.Addr {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.SortedFunc(slices.Values(l.set[id].Addresses), netip.Addr.Compare)
}

// An ENI's own address that is no longer for pods returns to the node once no pod holds it and it has
// cooled, even after a restart.
func TestOwnAddressStaysWithItsPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &memStore{}
		s := supplied(t, store)
		path := s.opts.Datapath.(*links)
		offer(t, s, withOwnAddress(true), nil)
		for i := range 2 {
			take(t, s, i+1)
		}
		var with int
		for i := range 2 {
			if s.addresses.leases[key(i+1)].IPv4 == own {
				with = i + 1
			}
		}
		lease := s.addresses.leases[key(with)].Lease
		held := func(when string, s *Source, path *links, yes bool) {
			t.Helper()
			synctest.Wait()
			check.Equal(t, slices.Contains(path.addresses("eni-1"), own), yes, "%s: the data path has", when)
		}
		offer(t, s, withOwnAddress(false), nil)
		held("a pod holds it", s, path, true)

		again := stopped(t, store)
		check.OK(t, again.Restore(source.Request{Key: key(with)}, lease))
		path = again.opts.Datapath.(*links)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go func() { _ = again.Run(ctx) }()
		held("after a restart", again, path, true)
		offer(t, again, withOwnAddress(false), nil)
		again.Release(key(with))
		held("it is cooling", again, path, true)
		time.Sleep(31 * time.Second) //nolint:forbidigo // virtual time, in a synctest bubble
		held("it is free", again, path, false)
		if a := take(t, again, 5); a == own {
			t.Error("a pod got the node's address")
		}

		offer(t, again, withOwnAddress(true), nil)
		held("it is for pods again", again, path, true)
		check.Equal(t, take(t, again, 6), own, "a pod got")
		offer(t, again, withOwnAddress(false), nil)
		again.Cancel(key(6))
		held("it was never used", again, path, false)
	})
}

// slow is a Datapath whose calls block until a test releases them.
type slow struct {
	*links
	begun, on chan struct{}
}

func (d *slow) SetENI(ctx context.Context, e eni.ENI) error {
	d.begun <- struct{}{}
	<-d.on
	return d.links.SetENI(ctx, e)
}

// An address that is removed and added again while SetENI is running for the removal waits for the next
// SetENI.
func TestAddressBeingRemovedIsNotAssignable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &slow{newLinks(), make(chan struct{}), make(chan struct{})}
		s := check.Must(NewSupplied(Options{InstanceID: instance, Datapath: d, Store: &memStore{}}, idleSupplier{}))(t)
		go func() { _ = s.Run(t.Context()) }()
		set := func() { <-d.begun; d.on <- struct{}{}; synctest.Wait() }
		offer(t, s, inventoryOf("10.0.0.1"), nil)
		set()
		offer(t, s, inventoryOf(), nil)
		<-d.begun
		offer(t, s, inventoryOf("10.0.0.1"), nil)
		wantTaken(t, s, 1, "")
		d.on <- struct{}{}
		synctest.Wait()
		wantTaken(t, s, 1, "")
		set()
		if a := take(t, s, 1); !a.IsValid() {
			t.Error("no pod got the address that is in the data path")
		}
	})
}

// The required changes of the data path depend on the published ENIs, its current state, and missing links.
func TestDifferences(t *testing.T) {
	now := clock.NewFake(time.Unix(1000, 0))
	n := newENIs(now, slog.New(slog.DiscardHandler))
	held := map[string]bool{}
	holds := func(id string) bool { return held[id] }
	one, two := eni.ENI{ID: "eni-1", DeviceIndex: 1, Serves: true}, eni.ENI{ID: "eni-2", DeviceIndex: 1, Serves: true}
	want := func(when, remove, set string) {
		t.Helper()
		r, s := n.differences(holds, func(e eni.ENI) eni.ENI { return e })
		var ids []string
		for _, e := range s {
			ids = append(ids, e.ID)
		}
		if fmt.Sprint(r) != remove || fmt.Sprint(ids) != set {
			t.Errorf("%s: differences() = remove %v, set %v; want %s, %s", when, r, ids, remove, set)
		}
	}
	n.publish([]eni.ENI{one, {ID: "eni-0"}}, holds)
	want("a new ENI, and one that serves no pods", "[]", "[eni-1]")
	if !n.set(one, fmt.Errorf("not yet: %w", source.ErrNoLink)) || !n.linkGone("eni-1", n.has("eni-1")) || len(n.missingLinks()) > 0 {
		t.Error("a link that has not appeared yet is reported as missing immediately")
	}
	if now.Advance(linkPatience); len(n.missingLinks()) != 1 {
		t.Error("a link that has not appeared for a long time is not reported as missing")
	}
	n.set(one, nil)
	want("once the data path has it", "[]", "[]")
	if !n.linkGone("eni-1", true) || n.linkGone("eni-1", true) || len(n.missingLinks()) != 1 {
		t.Error("want a vanished link reported as a change once, and as missing immediately")
	}
	want("the link vanished", "[]", "[eni-1]")
	n.set(one, nil)
	held["eni-1"] = true
	n.publish(nil, holds)
	want("the ENI is detached while a pod holds an address of it", "[]", "[]")
	n.publish([]eni.ENI{two}, holds)
	want("another ENI took its device index", "[eni-1]", "[eni-2]")
	n.removed("eni-1")
	want("the former ENI was removed", "[]", "[eni-2]")
}
