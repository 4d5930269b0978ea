package oracle

import (
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/source/nodelocal"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/run/node"
)

// checkFamilies wants a pod whose addresses are of ENIs to have one of each family that the
// lab's pods have, all on one ENI: the node sends what comes from a pod by one uplink.
// Which families a pod of a pool has is the pool's affair.
func (f *findings) checkFamilies(p *node.Pod, addrs []netip.Addr) {
	if !f.mode.HasEC2() {
		return
	}
	var got [ipfamily.Number]int
	for _, a := range addrs {
		got[ipfamily.Of(a)]++
	}
	for _, family := range []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6} {
		want := 0
		if f.families.Has(family) {
			want = 1
		}
		if got[family] != want {
			f.wrong("pod %s has %d addresses of %s, want %d: %v", p.Name, got[family], family, want, addrs)
		}
	}
	together := func(e vpc.ENI) bool {
		return !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !e.Owns(a) })
	}
	if !slices.ContainsFunc(f.enis, together) {
		f.wrong("pod %s has %v, which are not on one ENI of this node", p.Name, addrs)
	}
}

// takeNodeLocal takes note of a pod's node-local address, and returns its others. No two pods
// of a node have the same one; those of other nodes may.
func (f *findings) takeNodeLocal(k kernelState, p *node.Pod, s podState) (own []netip.Addr) {
	var local []netip.Addr
	for _, a := range s.addrs {
		if !nodelocal.Contains(a) {
			own = append(own, a)
			continue
		}
		local = append(local, a)
		if other := f.local[a]; other != nil {
			f.wrong("node-local address %s is in two pods: %s and %s", a, other.Name, p.Name)
		}
		f.local[a] = p
		if i, ok := k.routes[a]; !ok || i != s.peer {
			f.wrong("pod %s: the route to %s leads to link %d, want %d", p.Name, a, i, s.peer)
		}
	}
	has := f.hasLocal && !f.routed[p.UID] // a branch is all that such a pod has
	switch {
	case has && (len(local) != 1 || ipfamily.Of(local[0]) != f.localFamily):
		f.wrong("pod %s has node-local addresses %v, want one of %s", p.Name, local, f.localFamily)
	case !has && len(local) > 0:
		f.wrong("pod %s has node-local addresses %v, want none", p.Name, local)
	}
	return own
}
