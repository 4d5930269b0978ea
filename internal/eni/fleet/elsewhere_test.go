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

// thief is a cloud whose replies name addresses of one instance's ENIs to the
// others, and whose listings do so while it goes on lying.
type thief struct {
	*cloudfake.Cloud
	of       string // the instance
	lies     atomic.Int32
	listings atomic.Bool
}

// loot is an address for pods of the instance.
func (l *thief) loot() (_ netip.Addr, ok bool) {
	for _, e := range l.Truth() {
		if e.Attachment != nil && e.Attachment.InstanceID == l.of && len(e.Addresses) > 0 {
			return e.Addresses[0], true
		}
	}
	return netip.Addr{}, false
}

// strangers tells whether an ENI is another instance's.
func (l *thief) strangers(id string) bool {
	return !slices.ContainsFunc(l.Truth(), func(e cloud.ENI) bool {
		return e.ID == id && e.Attachment != nil && e.Attachment.InstanceID == l.of
	})
}

func (l *thief) AssignAddresses(ctx context.Context, id string, n cloud.Amount) ([]netip.Prefix, error) {
	got, err := l.Cloud.AssignAddresses(ctx, id, n)
	if a, ok := l.loot(); ok && err == nil && l.strangers(id) {
		l.lies.Add(1)
		got[0] = cloud.HostPrefix(a)
	}
	return got, err
}

func (l *thief) CreateENI(ctx context.Context, q cloud.CreateENI) (cloud.ENI, error) {
	e, err := l.Cloud.CreateENI(ctx, q)
	if a, ok := l.loot(); ok && err == nil && q.Tags[eni.TagInstanceID] != l.of && len(e.Addresses) > 0 {
		l.lies.Add(1)
		e.Addresses[0] = a
	}
	return e, err
}

func (l *thief) ENIs(ctx context.Context, f cloud.ENIFilter) ([]cloud.ENI, error) {
	list, err := l.Cloud.ENIs(ctx, f)
	a, ok := l.loot()
	for i, e := range list {
		if ok && l.listings.Load() && e.Attachment != nil && e.Attachment.InstanceID != l.of && e.Attachment.DeviceIndex > 0 {
			list[i].Addresses = append(slices.Clone(e.Addresses), a)
		}
	}
	return list, err
}

// twice lists the addresses that two nodes were given.
func (w *world) twice() (out []netip.Addr) {
	held := map[netip.Addr]string{}
	for _, o := range w.objects {
		o.mu.Lock()
		for _, e := range o.inv.ENIs {
			for _, a := range e.Addresses {
				if held[a] != "" && held[a] != o.name {
					out = append(out, a)
				}
				held[a] = o.name
			}
		}
		o.mu.Unlock()
	}
	return out
}

// The operator knows what every node has: a reply that names one node's address
// to another is not believed, and its ENI is described instead.
func TestAddressesOfAnotherNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		cloud := &thief{Cloud: w.cloud, of: w.objects[0].instance}
		p := w.operator(cloud)
		s := settings(0, 4)
		p.set(t, w.objects[0], s).start()
		pass(5 * time.Second)
		second, third := p.set(t, w.objects[1], s), p.set(t, w.objects[2], s)
		for range 10 {
			second.start()
			third.start()
			p.Kick(second.name)
			p.Kick(third.name)
			for range 50 {
				pass(100 * time.Millisecond)
				if got := w.twice(); len(got) > 0 {
					t.Fatalf("two nodes were given %v", got)
				}
			}
		}
		if with, waiting := second.pods(); with != 10 || waiting > 0 || cloud.lies.Load() < 4 {
			t.Errorf("%d pods have addresses, %d wait, EC2 lied %d times", with, waiting, cloud.lies.Load())
		}
		w.agree()
		p.stop()
		// A new process knows what was published, before it has listed anything.
		p = w.operator(cloud)
		for _, o := range w.objects {
			p.set(t, o, s)
		}
		for range 20 {
			second.start()
			p.Kick(second.name)
			pass(time.Second)
			if got := w.twice(); len(got) > 0 {
				t.Fatalf("two nodes were given %v by a new process", got)
			}
		}
		w.agree()
		// Once the node is no more its addresses may be another's.
		p.Remove(w.objects[0].name)
		first := w.objects[0].inv.ENIs
		for _, a := range first[len(first)-1].Addresses {
			if held := p.holders.other("", "subnet-home", netip.PrefixFrom(a, 32)); held != "" {
				t.Errorf("%v is held by %s after its node was removed", a, held)
			}
		}
		p.stop()
	})
}

// Of one full listing, an address that two nodes' ENIs have stays with the node
// that had it.
func TestListingsWithAddressesOfAnotherNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		cloud := &thief{Cloud: w.cloud, of: w.objects[0].instance}
		p := w.operator(&cloud2{cloud})
		s := settings(0, 4)
		p.set(t, w.objects[0], s).start()
		p.set(t, w.objects[1], s).start()
		pass(20 * time.Second)
		w.agree()
		cloud.listings.Store(true)
		for range 20 {
			pass(minute)
			if got := w.twice(); len(got) > 0 {
				t.Fatalf("two nodes were given %v", got)
			}
		}
		cloud.listings.Store(false)
		pass(5 * minute)
		w.agree()
		p.stop()
	})
}

// cloud2 lies in listings alone.
type cloud2 struct{ *thief }

func (c *cloud2) AssignAddresses(ctx context.Context, id string, n cloud.Amount) ([]netip.Prefix, error) {
	return c.Cloud.AssignAddresses(ctx, id, n)
}

func (c *cloud2) CreateENI(ctx context.Context, q cloud.CreateENI) (cloud.ENI, error) {
	return c.Cloud.CreateENI(ctx, q)
}

// Addresses that EC2 gives again, of an instance that ended and whose node is
// there still, come after one look at the ENI.
func TestAddressesOfAnEndedNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		p := w.operator(w.cloud)
		s := settings(0, 4)
		ghost := newObject("ghost", "i-ghost")
		ghost.inv = eni.Inventory{InstanceID: "i-ghost", ENIs: []eni.ENI{{ID: "eni-ghost", DeviceIndex: 1, SubnetID: "subnet-home", Serves: true}}}
		for a := netip.MustParseAddr("10.0.0.4"); a != netip.MustParseAddr("10.0.0.60"); a = a.Next() {
			ghost.inv.ENIs[0].Addresses = append(ghost.inv.ENIs[0].Addresses, a)
		}
		p.set(t, ghost, s)
		n := p.set(t, w.objects[0], s)
		for range 6 {
			n.start()
			p.Kick(n.name)
		}
		pass(5 * time.Second)
		if with, waiting := n.pods(); with != 6 || waiting > 0 {
			t.Errorf("%d pods have addresses, %d wait", with, waiting)
		}
		p.stop()
	})
}

// renamer is a cloud that answers a creation with the ID of another instance's ENI.
type renamer struct {
	*cloudfake.Cloud
	id   string
	lies atomic.Int32
}

func (r *renamer) CreateENI(ctx context.Context, q cloud.CreateENI) (cloud.ENI, error) {
	e, err := r.Cloud.CreateENI(ctx, q)
	if err == nil && r.lies.Add(1) <= 3 {
		e.ID = r.id
	}
	return e, err
}

// An ENI that a reply calls by the name of another node's is not deleted, and the
// one that was made is found.
func TestCreationsNamedAsAnotherNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2)
		cloud := &renamer{Cloud: w.cloud}
		cloud.lies.Store(100)
		p := w.operator(cloud)
		s := settings(0, 4)
		first := p.set(t, w.objects[0], s)
		first.start()
		pass(20 * time.Second)
		for _, e := range w.cloud.Truth() {
			if e.Attachment.DeviceIndex > 0 {
				cloud.id = e.ID
			}
		}
		cloud.lies.Store(0)
		second := p.set(t, w.objects[1], s)
		second.start()
		pass(20 * minute)
		if with, _ := second.pods(); with != 1 { // a listing may show what was made after the first lie
			t.Errorf("%d pods have addresses after %d creations", with, cloud.lies.Load())
		}
		attaches := 0
		for _, c := range w.cloud.Calls() {
			if c.ENI == cloud.id && c.Op == "AttachENI" {
				attaches++
			}
			if c.ENI == cloud.id && c.Op == "DeleteENI" {
				t.Errorf("%s of %s, which is %s's: %v", c.Op, c.ENI, first.name, c.Err)
			}
		}
		if attaches < 1+3 { // its owner's, and until the other gives it up
			t.Errorf("%d attachments of %s were asked for", attaches, cloud.id)
		}
		w.kept()
		w.agree()
		p.stop()
	})
}
