package nodenetwork

import (
	"maps"
	"net/netip"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/eni"
	"github.com/berthnet/berth/internal/eni/plan"
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
	u := tally(n.obj, n.reserved)
	u.Waiting = max(int(n.obj.Status.IPAM.Waiting), n.c.waitingPods(n.name, n.obj.Status.IPAM.Used))
	return u
}

// tally counts an object's addresses by ENI. All that are in status.ipam.used
// are used, those that cool too: Cilium counts len(status.ipam.used).
// What reserved answers true for is neither used nor free.
func tally(o *v1alpha1.NodeNetwork, reserved func(netip.Prefix) bool) eni.Usage {
	u := eni.Usage{ENIs: map[string]eni.ENIUsage{}}
	inUse := map[netip.Prefix]bool{} // /32s and /28s with something used in them
	for text, use := range o.Status.IPAM.Used {
		a, err := netip.ParseAddr(text)
		if err != nil {
			continue
		}
		id := use.Resource
		for _, p := range [...]netip.Prefix{cloud.HostPrefix(a), cloud.PrefixAround(a)} {
			inUse[p] = true
			if at, ok := o.Spec.IPAM.Available[nodenetwork.Format(p)]; ok {
				id = at.Resource // whatever the daemon says
			}
		}
		e := u.ENIs[id]
		e.Used++
		u.ENIs[id] = e
	}
	for p, id := range nodenetwork.Available(o) {
		if inUse[p] || reserved(p) {
			continue
		}
		e := u.ENIs[id]
		if p.IsSingleIP() {
			e.Free.Addresses++
		} else {
			e.Free.Prefixes++
		}
		u.ENIs[id] = e
	}
	return u
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

// weight is how many IPv4 addresses a thing stands for.
func weight(p netip.Prefix) int { return plan.Count(cloud.AmountOf([]netip.Prefix{p})) }
