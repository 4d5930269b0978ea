package eni

import (
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/cloud"
)

// Undisputed is a listing of the ENIs of many nodes without what it gives to
// ENIs of several: an address or prefix stays with the ENI that had it, as told by
// had, and with none if nobody had. What the ENIs of one node dispute is for its
// reconciler. Owner is the instance that an ENI is of.
func Undisputed(list []cloud.ENI, owner func(cloud.ENI) string, had func(cloud.ENI, netip.Prefix) bool) (out []cloud.ENI, lost []string) {
	byVPC, byID := map[string][]cloud.ENI{}, map[string]int{}
	for i, e := range list {
		byVPC[e.VPCID] = append(byVPC[e.VPCID], e)
		byID[e.ID] = i
	}
	out = list
	for _, enis := range byVPC {
		found := disputes(nil, enis)
		if len(found) == 0 { // as nearly always
			continue
		}
		var before []cloud.ENI
		for _, d := range found {
			for _, id := range d.among {
				if e := list[byID[id]]; had(e, d.thing) {
					before = append(before, cloud.ENI{ID: id, Prefixes: []netip.Prefix{d.thing}})
				}
			}
		}
		for _, d := range disputes(before, enis) {
			at := byID[d.eni]
			mine := owner(list[at])
			if !slices.ContainsFunc(d.among, func(id string) bool { return owner(list[byID[id]]) != mine }) {
				continue
			}
			if len(lost) == 0 {
				out = slices.Clone(list)
			}
			lost = append(lost, brief(d.thing)+" of "+d.eni)
			is := func(p netip.Prefix) bool { return p == d.thing }
			one := func(a netip.Addr) bool { return host(a) == d.thing }
			e := &out[at]
			e.Addresses, e.IPv6 = without(e.Addresses, one), without(e.IPv6, one)
			e.Prefixes, e.IPv6Prefixes = without(e.Prefixes, is), without(e.IPv6Prefixes, is)
		}
	}
	return out, lost
}
