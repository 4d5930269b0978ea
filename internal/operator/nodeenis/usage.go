package nodeenis

import (
	"maps"
	"math"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/nodenetwork"
)

// Usage implements fleet.Node.
func (n *node) Usage() eni.Usage {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.usage()
}

// usage is what pods do with what was published, as the newest state of the
// object has it. n.mu is held.
func (n *node) usage() eni.Usage {
	u := n.tally(n.obj)
	u.MissingLinks = n.obj.Status.IPAM.MissingLinks
	u.Waiting = max(int(n.obj.Status.IPAM.Waiting), n.c.waitingPods(n.name, n.obj.Status.IPAM.Used))
	return u
}

// families are those of which pods get addresses: those that the fleet works by, or
// before it does those of the object. n.mu is held.
func (n *node) families() ipfamily.Set {
	if n.config.set {
		return n.config.settings.Policy.Families
	}
	s, _ := nodenetwork.Families(n.obj) // one that makes no sense is told of by Settings
	return s
}

// tally counts an object's addresses by ENI, in pods. All that are in
// status.ipam.used are used, those that cool too: Cilium counts
// len(status.ipam.used). What is on its way back is neither used nor free, and an
// ENI's own address is never taken back. n.mu is held.
func (n *node) tally(o *v1alpha1.NodeNetwork) eni.Usage {
	u := eni.Usage{ENIs: map[string]eni.ENIUsage{}}
	used, inUse := usedOf(o)
	for id, c := range used {
		u.ENIs[id] = eni.ENIUsage{Used: slices.Max(c[:])}
	}
	free := amounts{}
	for p, id := range nodenetwork.Available(o) {
		if !inUse[p] && !n.reserved(p) {
			free.add(id, p)
		}
	}
	room := n.room(o, used)
	for _, id := range slices.Concat(slices.Collect(maps.Keys(free)), slices.Collect(maps.Keys(room))) {
		e := u.ENIs[id]
		e.Free, e.Assignable = free[id], max(0, room[id])
		u.ENIs[id] = e
	}
	return u
}

// room is for how many pods more each ENI has published addresses that nobody takes
// back. It is less than none where pods have addresses that were taken out of
// available. n.mu is held.
func (n *node) room(o *v1alpha1.NodeNetwork, used map[string]counts) map[string]int {
	stay := amounts{}
	for p, id := range nodenetwork.Available(o) {
		if !n.handshake.handedOrMarked(n.obj, p) {
			stay.add(id, p)
		}
	}
	out := make(map[string]int, len(stay))
	for id := range used {
		out[id] = 0
	}
	for id := range stay {
		out[id] = 0
	}
	for id := range out {
		out[id] = spare(n.families(), stay[id], used[id])
	}
	return out
}

// counts are numbers of addresses by family.
type counts [ipfamily.Number]int

// usedOf counts the addresses that pods use, or used lately, by the ENI that they are
// of, and lists the things among which they are: themselves, and the prefixes around
// them. Of which ENI an available one is the object's spec says, whatever the daemon
// does.
func usedOf(o *v1alpha1.NodeNetwork) (byENI map[string]counts, inUse map[netip.Prefix]bool) {
	byENI, inUse = map[string]counts{}, map[netip.Prefix]bool{}
	for text, use := range o.Status.IPAM.Used {
		a, err := netip.ParseAddr(text)
		if err != nil {
			continue
		}
		id := use.Resource
		for _, p := range [...]netip.Prefix{cloud.HostPrefix(a), cloud.PrefixAround(a)} {
			inUse[p] = true
			if at := resourceOf(o, p); at != "" {
				id = at
			}
		}
		c := byENI[id]
		c[ipfamily.Of(a)]++
		byENI[id] = c
	}
	return byENI, inUse
}

// spare is for how many pods more an amount on one ENI is enough, of which some
// addresses are used; less than none: more are used than the amount is.
func spare(s ipfamily.Set, a cloud.Amount, used counts) int {
	n := math.MaxInt
	for _, f := range s.Families() {
		n = min(n, plan.CountOf(f, a)-used[f])
	}
	return n
}

// amounts are what ENIs have, by their IDs.
type amounts map[string]cloud.Amount

// add adds an address, as a prefix of full length, or a prefix to an ENI's.
func (a amounts) add(id string, p netip.Prefix) {
	a[id] = a[id].Plus(cloud.AmountOf([]netip.Prefix{p}))
}

// pods is for how many pods the amounts are enough, each of which has its addresses
// of one ENI.
func (a amounts) pods(s ipfamily.Set) (sum int) {
	for _, n := range a {
		sum += plan.Pods(s, n)
	}
	return sum
}

// uses tells whether a pod has, or had lately, an address of a thing.
func uses(o *v1alpha1.NodeNetwork, p netip.Prefix) bool {
	if p.IsSingleIP() {
		_, ok := o.Status.IPAM.Used[p.Addr().String()]
		return ok
	}
	for text := range o.Status.IPAM.Used {
		if a, err := netip.ParseAddr(text); err == nil && p.Contains(a) {
			return true
		}
	}
	return false
}

// usesENI tells whether a pod has, or had lately, an address of an ENI, also one
// that is not available any more.
func usesENI(o *v1alpha1.NodeNetwork, id string) bool {
	for _, use := range o.Status.IPAM.Used {
		if use.Resource == id {
			return true
		}
	}
	return false
}

func sameUsage(x, y eni.Usage) bool { return x.Waiting == y.Waiting && maps.Equal(x.ENIs, y.ENIs) }

// reportedUIDs are the pods that have an address.
func reportedUIDs(used map[string]v1alpha1.UsedAddress) map[types.UID]bool {
	out := make(map[types.UID]bool, len(used))
	for _, u := range used {
		if u.UID != "" && !u.Cooling {
			out[types.UID(u.UID)] = true
		}
	}
	return out
}
