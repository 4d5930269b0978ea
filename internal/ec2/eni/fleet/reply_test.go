package fleet

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/test/harness/check"
)

// An address that is listed for two ENIs stays with the one that has it. Pods keep their addresses, and
// the rest is used when descriptions agree.
func TestListingsThatCannotBeTrue(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		var lies atomic.Bool
		ec2 := &api{Cloud: w.cloud, listed: func(list []cloud.ENI) { // every ENI has the MAC and addresses of the first
			first := w.cloud.State.Truth()[0]
			for i := range list {
				if lies.Load() {
					list[i].MAC = slices.Clone(first.MAC)
					if list[i].ID != first.ID {
						list[i].Addresses = append(list[i].Addresses, first.Addresses[0], first.Primary)
					}
				}
			}
		}}
		p := w.operator(ec2)
		s := settings(20, 4)
		s.Policy.FirstInterfaceIndex = 0
		n := p.set(t, w.objects[0], s)
		pass(10 * time.Second)
		w.agree()
		macs := func() (out []string) {
			for _, e := range n.inventory().ENIs {
				out = append(out, e.ID+" "+e.MAC.String())
			}
			return out
		}
		before := macs()
		if len(before) != 2 {
			t.Fatalf("ENIs %v, want two", before)
		}
		lies.Store(true)
		pass(20 * minute)
		w.agree()
		if got := macs(); !slices.Equal(got, before) {
			t.Errorf("ENIs %v, before the lies %v", got, before)
		}
		// A new process knows nothing from before but what was published.
		p.stop()
		w.operator(ec2).set(t, w.objects[0], s)
		pass(20 * minute)
		w.agree()
		lies.Store(false)
		pass(20 * minute)
	})
}

// thief is a cloud that assigns addresses of one instance's ENIs to others as well: in replies or in
// listings, while switched on.
type thief struct {
	w                 *world
	of                string // the instance
	lies              atomic.Int32
	replies, listings atomic.Bool
}

// loot returns an address of the instance for pods. There is none while it has none, or for an ENI of
// its own.
func (l *thief) loot(eniID string) (a netip.Addr, ok bool) {
	for _, e := range l.w.cloud.State.Truth() {
		if e.Attachment != nil && e.Attachment.InstanceID == l.of {
			if e.ID == eniID {
				return a, false
			}
			if !ok && len(e.Addresses) > 0 {
				a, ok = e.Addresses[0], true
			}
		}
	}
	return a, ok
}

func (l *thief) api() *api {
	lie := func(id string) (netip.Addr, bool) {
		a, ok := l.loot(id)
		if ok = ok && l.replies.Load(); ok {
			l.lies.Add(1)
		}
		return a, ok
	}
	return &api{
		Cloud: l.w.cloud,
		assigned: func(id string, got []netip.Prefix) {
			if a, ok := lie(id); ok {
				got[0] = cloud.HostPrefix(a)
			}
		},
		created: func(q cloud.CreateENI, e *cloud.ENI) {
			if q.Tags[eni.TagInstanceID] == l.of || len(e.Addresses) == 0 {
				return
			}
			if a, ok := lie(e.ID); ok {
				e.Addresses[0] = a
			}
		},
		listed: func(list []cloud.ENI) {
			for i, e := range list {
				if a, ok := l.loot(e.ID); ok && l.listings.Load() && e.Attachment != nil && e.Attachment.DeviceIndex > 0 {
					list[i].Addresses = append(slices.Clone(e.Addresses), a)
				}
			}
		},
	}
}

// onceEach checks that no two nodes got the same address.
func (w *world) onceEach() {
	w.t.Helper()
	of := map[netip.Addr]string{}
	for _, o := range w.objects {
		for _, e := range o.inventory().ENIs {
			for _, a := range e.Addresses {
				if of[a] != "" && of[a] != o.name {
					w.t.Fatalf("%s and %s were given %v", of[a], o.name, a)
				}
				of[a] = o.name
			}
		}
	}
}

// The operator knows the addresses of every node: a reply with an address of another node is not used,
// and the ENI is described instead.
func TestAddressesOfAnotherNode(t *testing.T) {
	bubble(t, 3, func(t *testing.T, w *world) {
		ec2 := &thief{w: w, of: w.objects[0].instance}
		ec2.replies.Store(true)
		p, s := w.operator(ec2.api()), settings(0, 4)
		p.set(t, w.objects[0], s).start()
		pass(5 * time.Second)
		second, third := p.set(t, w.objects[1], s), p.set(t, w.objects[2], s)
		for range 10 {
			second.run(1)
			third.run(1)
			for range 50 {
				pass(100 * time.Millisecond)
				w.onceEach()
			}
		}
		second.wantPods(t, 10)
		if ec2.lies.Load() < 4 {
			t.Errorf("EC2 lied %d times", ec2.lies.Load())
		}
		w.agree()
		p.stop()
		// A new process knows what was published, before it has listed anything.
		p = w.operator(ec2.api())
		p.setAll(s)
		for range 20 {
			p.writers[second.name].run(1)
			pass(time.Second)
			w.onceEach()
		}
		w.agree()
		// Once the node is no more its addresses may be another's.
		p.Remove(w.objects[0].name)
		first := w.objects[0].inventory().ENIs
		for _, a := range first[len(first)-1].Addresses {
			check.Equal(t, p.holders.other("", "subnet-home", netip.PrefixFrom(a, 32)), "", "the holder of %v after its node was removed", a)
		}
	})
}

// An address that a full listing has for ENIs of two nodes stays with the node that had it.
func TestListingsWithAddressesOfAnotherNode(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		ec2 := &thief{w: w, of: w.objects[0].instance}
		p := w.operator(ec2.api())
		p.setAll(settings(0, 4))
		for _, n := range p.writers {
			n.start()
		}
		pass(20 * time.Second)
		w.agree()
		ec2.listings.Store(true)
		for range 20 {
			pass(minute)
			w.onceEach()
		}
		ec2.listings.Store(false)
		pass(5 * minute)
	})
}

// If EC2 assigns addresses of an instance that ended while its node still exists, they are used after
// one lookup of the ENI.
func TestAddressesOfAnEndedNode(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		p := w.operator(w.cloud)
		ghost := newObject("ghost", "i-ghost")
		ghost.inv = eni.Inventory{InstanceID: "i-ghost", ENIs: []eni.ENI{{ID: "eni-ghost", DeviceIndex: 1, SubnetID: "subnet-home", Serves: true}}}
		for a := netip.MustParseAddr("10.0.0.4"); a != netip.MustParseAddr("10.0.0.60"); a = a.Next() {
			ghost.inv.ENIs[0].Addresses = append(ghost.inv.ENIs[0].Addresses, a)
		}
		p.set(t, ghost, settings(0, 4))
		n := p.set(t, w.objects[0], settings(0, 4))
		n.runFor(6, 5*time.Second)
		n.wantPods(t, 6)
	})
}

// If a reply gives a new ENI the ID of another node's, that ENI is not deleted, and the new one is
// found.
func TestCreationsNamedAsAnotherNodes(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world) {
		var name string // of the first node's ENI
		var lies atomic.Int32
		p := w.operator(&api{Cloud: w.cloud, created: func(_ cloud.CreateENI, e *cloud.ENI) {
			if name != "" && lies.Add(1) <= 3 {
				e.ID = name
			}
		}})
		first := p.set(t, w.objects[0], settings(0, 4))
		first.start()
		pass(20 * time.Second)
		name = w.attached()[0].ID
		second := p.set(t, w.objects[1], settings(0, 4))
		second.start()
		pass(20 * minute)
		if with, _ := second.pods(); with != 1 { // a listing may show what was made after the first lie
			t.Errorf("%d pods have addresses after %d creations", with, lies.Load())
		}
		attaches := 0
		for _, c := range w.cloud.Front.Calls() {
			if c.ENI == name && c.Op == "AttachENI" {
				attaches++
			}
			if c.ENI == name && c.Op == "DeleteENI" {
				t.Errorf("%s of %s, which is %s's: %v", c.Op, c.ENI, first.name, c.Err)
			}
		}
		if attaches < 1+3 { // its owner's, and until the other gives it up
			t.Errorf("%d attachments of %s were asked for", attaches, name)
		}
		w.kept()
	})
}

// A subnet keeps its CIDR for life, and the addresses of its ENIs are in it: nodes find their router by
// it.
func TestCIDRsOfSubnetsThatCannotBeTrue(t *testing.T) {
	truth := netip.MustParsePrefix("10.0.0.0/16")
	others, smaller := netip.MustParsePrefix("10.9.0.0/16"), netip.MustParsePrefix("10.0.0.0/20")
	for _, tt := range []struct {
		name        string
		first, then netip.Prefix
		served      bool // before the second answer
	}{
		{"of others, from the start", others, truth, false},
		{"of others, later", truth, others, true},
		{"smaller, later", truth, smaller, true},
	} {
		t.Run(tt.name, inBubble(2, func(t *testing.T, w *world) {
			answer := tt.first
			p := w.operator(&api{Cloud: w.cloud, subnets: func(list []cloud.Subnet) {
				for i := range list {
					list[i].CIDR = answer
				}
			}})
			look := func(want bool) {
				t.Helper()
				for range 10 {
					pass(30 * time.Second)
					for _, n := range p.writers {
						n.run(1)
					}
				}
				pass(time.Second)
				for _, n := range p.writers {
					for _, e := range n.inventory().ENIs {
						if want && e.Subnet != truth || e.Subnet.IsValid() && e.Subnet != truth {
							t.Errorf("%s of %s was published in %v", e.ID, n.name, e.Subnet)
						}
					}
				}
			}
			p.set(t, w.objects[0], settings(0, 4))
			look(tt.served)
			answer = tt.then
			p.set(t, w.objects[1], settings(0, 4))
			look(true)
		}))
	}
}
