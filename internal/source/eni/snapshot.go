package eni

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/attachment"
	"github.com/berthnet/berth/internal/eni"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/source"
)

// Snapshot implements source.Source.
func (s *Source) Snapshot() source.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := source.Snapshot{Waiting: s.waiters.Len(), LastError: s.supply.LastError()}
	for _, e := range s.inv.ENIs {
		out.Groups = append(out.Groups, s.group(e))
	}
	seen := map[netip.Addr]bool{}
	for v := range s.alloc.Addresses() {
		seen[v.Addr] = true
		out.Addresses = append(out.Addresses, address(v))
	}
	for _, id := range sortedIDs(s.published) {
		out.Addresses = append(out.Addresses, pending(s.published[id], seen)...)
	}
	slices.SortFunc(out.Addresses, func(x, y source.AddressInfo) int { return x.Addr.Compare(y.Addr) })
	slices.SortFunc(out.Groups, func(x, y source.GroupInfo) int {
		return cmp.Or(cmp.Compare(x.DeviceIndex, y.DeviceIndex), cmp.Compare(x.ID, y.ID))
	})
	return out
}

func (s *Source) group(e eni.ENI) source.GroupInfo {
	_, ready := s.programmed[e.ID]
	slots := max(0, s.inv.Limits.IPv4PerENI-1)
	g := source.GroupInfo{
		ID: e.ID, DeviceIndex: e.DeviceIndex, Primary: e.Primary, MAC: e.MAC.String(), Subnet: e.SubnetID,
		Ready: ready && e.Serves, Reason: s.down[e.ID], Capacity: slots,
	}
	if s.supply.PrefixDelegation() && s.inv.Limits.Prefixes {
		g.Capacity = slots * ipam.PrefixAddresses
	}
	switch {
	case !e.Serves:
		g.Capacity, g.Reason = 0, "its device index is below first-interface-index"
	case !ready && g.Reason == "":
		g.Reason = "data path not programmed yet"
	}
	return g
}

func address(v ipam.AddressView[attachment.Key]) source.AddressInfo {
	a := source.AddressInfo{Addr: v.Addr, Group: v.Group, Prefix: v.Prefix, Since: v.Since}
	switch {
	case v.Used:
		key := v.Key
		a.State, a.Key = source.Used, &key
	case v.Cooling:
		a.State = source.Cooling
	case v.Withdrawn:
		a.State = source.Withdrawn
	case v.Ready:
		a.State = source.Warm
	default:
		a.State = source.NotReady
	}
	return a
}

// pending are the addresses of an ENI that its data path does not have yet.
func pending(e eni.ENI, seen map[netip.Addr]bool) (out []source.AddressInfo) {
	add := func(a netip.Addr, p netip.Prefix) {
		if !seen[a] {
			out = append(out, source.AddressInfo{Addr: a, State: source.NotReady, Group: e.ID, Prefix: p})
		}
	}
	for _, a := range e.Addresses {
		add(a, netip.Prefix{})
	}
	for _, p := range e.Prefixes {
		for a := p.Addr(); p.Contains(a); a = a.Next() {
			add(a, p)
		}
	}
	return out
}
