package lab

import (
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/lab/cloud/vpc"
	"github.com/berthnet/berth/internal/lab/run/node"
)

// checkFamilies wants a pod whose addresses are of ENIs to have one of each family that the
// lab's pods have, all on one ENI: the node sends what comes from a pod by one uplink.
// Which families a pod of a pool has is the pool's affair.
func (f *findings) checkFamilies(p *node.Pod, addrs []netip.Addr) {
	if !f.mode.hasEC2() {
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
