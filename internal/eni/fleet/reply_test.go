package fleet

import (
	"context"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/cloud/cloudfake"
	"github.com/berthnet/berth/internal/eni"
)

// liar is a cloud whose first assignment answers with an ENI's own address.
type liar struct {
	*cloudfake.Cloud
	lies atomic.Int32
}

func (l *liar) AssignAddresses(ctx context.Context, id string, n cloud.Amount) ([]netip.Prefix, error) {
	got, err := l.Cloud.AssignAddresses(ctx, id, n)
	if err != nil || l.lies.Load() > 0 {
		return got, err
	}
	l.lies.Add(1)
	for _, e := range l.Truth() {
		if e.ID == id {
			got[0] = cloud.HostPrefix(e.Primary)
		}
	}
	return got, nil
}

// The operator publishes no address that a reply names and its ENI does not
// have for pods: it describes the ENI instead.
func TestAssignedAddressesThatCannotBeTrue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		cloud := &liar{Cloud: w.cloud}
		p := w.operator(cloud)
		s := settings(0, 4)
		s.Policy.FirstInterfaceIndex = 0
		n := p.set(t, w.objects[0], s)
		pass(5 * time.Second)
		for range 8 {
			n.start()
			if err := p.Set(n.name, n.instance, s, eni.Inventory{}, n); err != nil {
				t.Fatal(err)
			}
			pass(5 * time.Second)
		}
		if with, waiting := n.pods(); with != 8 || waiting > 0 || cloud.lies.Load() != 1 {
			t.Errorf("%d pods have addresses, %d wait, EC2 lied %d times", with, waiting, cloud.lies.Load())
		}
		for _, e := range w.cloud.Truth() {
			n.mu.Lock()
			if n.used[e.Primary] {
				t.Errorf("a pod got %v, the primary address of %s", e.Primary, e.ID)
			}
			n.mu.Unlock()
		}
		w.agree()
		p.stop()
	})
}

// twins is a cloud that describes every ENI with the first one's MAC address, and
// addresses of its, while it lies.
type twins struct {
	*cloudfake.Cloud
	lies atomic.Bool
}

func (l *twins) ENIs(ctx context.Context, f cloud.ENIFilter) ([]cloud.ENI, error) {
	list, err := l.Cloud.ENIs(ctx, f)
	first := l.Truth()[0]
	for i := range list {
		if !l.lies.Load() {
			break
		}
		list[i].MAC = slices.Clone(first.MAC)
		if list[i].ID != first.ID {
			list[i].Addresses = append(list[i].Addresses, first.Addresses[0], first.Primary)
		}
	}
	return list, err
}

// What a listing says of two ENIs stays with the one that has it; pods of
// either keep what they have, and the rest comes when descriptions agree.
func TestListingsThatCannotBeTrue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		cloud := &twins{Cloud: w.cloud}
		p := w.operator(cloud)
		s := settings(20, 4)
		s.Policy.FirstInterfaceIndex = 0
		n := p.set(t, w.objects[0], s)
		pass(10 * time.Second)
		w.agree()
		macs := func() (out []string) {
			n.mu.Lock()
			defer n.mu.Unlock()
			for _, e := range n.inv.ENIs {
				out = append(out, e.ID+" "+e.MAC.String())
			}
			return out
		}
		before := macs()
		if len(before) != 2 {
			t.Fatalf("ENIs %v, want two", before)
		}
		cloud.lies.Store(true)
		pass(20 * minute)
		w.agree()
		if got := macs(); !slices.Equal(got, before) {
			t.Errorf("ENIs %v, before the lies %v", got, before)
		}
		// A new process knows nothing from before but what was published.
		p.stop()
		p = w.operator(cloud)
		p.set(t, w.objects[0], s)
		pass(20 * minute)
		w.agree()
		cloud.lies.Store(false)
		pass(20 * minute)
		w.agree()
		p.stop()
	})
}
