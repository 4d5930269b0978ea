package egressclient

import (
	"cmp"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/kernel/tunnel"
)

// plan is the desired state of the kernel, without nftables.
type plan struct {
	tunnels []tunnel.Tunnel
	routes  []route
	rules   []rtnl.Rule
}

// route is one of Berth's in the tables of this package.
type route struct {
	routeKey
	// via is the gateway, on the tunnel's device. Zero: the route is unreachable.
	via netip.Addr
	src netip.Addr
}

// routeKey identifies a route: the kernel has at most one of each.
type routeKey struct {
	table, metric int
	dst           netip.Prefix
}

func (p routeKey) family() int { return rtnl.FamilyOf(p.dst.Addr()) }

// families are those of the pod's addresses.
func (s Setup) families() []int {
	var list []int
	for _, f := range []int{unix.AF_INET, unix.AF_INET6} {
		if tunnel.AddrOf(s.Addrs, f).IsValid() {
			list = append(list, f)
		}
	}
	return list
}

// newPlan computes the plan. mtu is that of the pod's own link; further are the names of the links with addresses of
// Others.
func newPlan(s Setup, mtu int, further []string) plan {
	s = s.sorted()
	var p plan
	if len(s.Egresses) == 0 {
		return p
	}
	auto := slices.ContainsFunc(s.Egresses, func(e Egress) bool { return e.SourcePortAuto })
	for _, f := range s.families() {
		own := tunnel.AddrOf(s.Addrs, f)
		p.tunnels = append(p.tunnels, tunnel.Tunnel{Local: own, MTU: tunnel.MTU(mtu, own), Port: s.Port, SourcePortAuto: auto})
		for _, e := range s.Egresses {
			p.routes = append(p.routes, e.routes(f, own)...)
		}
		p.rules = append(p.rules, s.rules(f, further)...)
	}
	if s.NodeLocal.IsValid() {
		s.bar(&p, further)
	}
	return p
}

// bar makes the destinations of the family of NodeLocal unreachable.
func (s Setup) bar(p *plan, further []string) {
	f, reached := rtnl.FamilyOf(s.NodeLocal), false
	s.Egresses = slices.Clone(s.Egresses)
	for i, e := range s.Egresses {
		e = Egress{Name: e.Name, Destinations: e.Destinations}
		s.Egresses[i] = e
		p.routes = append(p.routes, e.routes(f, s.NodeLocal)...)
		reached = reached || len(e.destinations(f)) > 0
	}
	if reached {
		p.rules = append(p.rules, s.rules(f, further)...)
	}
}

// direct reports whether tunnels lead to the gateways themselves, and not to a Service.
func (e Egress) direct() bool { return len(e.Service) == 0 }

// nextHops are the gateways of a family to which tunnels may lead.
func (e Egress) nextHops(family int) []Gateway {
	if !e.direct() {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(e.Gateways), func(g Gateway) bool { return !tunnel.AddrOf(g.Addrs, family).IsValid() })
}

// chosen are the gateways of a family that new connections may use.
func (e Egress) chosen(family int) []Gateway {
	return slices.DeleteFunc(e.nextHops(family), func(g Gateway) bool { return !g.Chosen })
}

// base is the next hop of the routes to the destinations of a family, before nftables chooses one for each
// connection; invalid without a gateway. Existing connections need it even if no gateway takes new ones, and so do
// replies of connections from outside.
func (e Egress) base(family int) netip.Addr {
	if !e.direct() && len(e.Gateways) > 0 {
		if a := tunnel.AddrOf(e.Service, family); a.IsValid() {
			return a
		}
	}
	if list := e.chosen(family); len(list) > 0 {
		return tunnel.AddrOf(list[0].Addrs, family)
	}
	if list := e.nextHops(family); len(list) > 0 {
		return tunnel.AddrOf(list[0].Addrs, family)
	}
	if e.OriginatingOnly {
		return noGateway(family)
	}
	return netip.Addr{}
}

// destinations are those of a family.
func (e Egress) destinations(family int) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(e.Destinations), func(d netip.Prefix) bool { return rtnl.FamilyOf(d.Addr()) != family })
}

func tableOf(d netip.Prefix) int {
	if d.Bits() == 0 {
		return tableDefault
	}
	return tableDestinations
}

// routes are those to an Egress's destinations, with a fallback for each, and the route to each gateway in the
// gateway's own table.
func (e Egress) routes(family int, own netip.Addr) []route {
	var list []route
	base := e.base(family)
	for _, d := range e.destinations(family) {
		list = append(list, route{routeKey: routeKey{tableOf(d), metricFallback, d}})
		if base.IsValid() {
			list = append(list, route{routeKey{tableOf(d), metricVia, d}, base, own})
		}
	}
	if len(list) == 0 {
		return nil
	}
	for _, g := range e.nextHops(family) {
		every := netip.PrefixFrom(rtnl.Unspecified(own), 0)
		list = append(list, route{routeKey{tableGateways + g.ID, metricVia, every}, tunnel.AddrOf(g.Addrs, family), own})
	}
	return list
}

// rules of a family, by priority.
func (s Setup) rules(family int, further []string) []rtnl.Rule {
	var list []rtnl.Rule
	add := func(r rtnl.Rule) {
		r.Family = family
		list = append(list, r)
	}
	passes := len(s.others(family))+len(further) > 0
	for _, a := range s.others(family) {
		add(rtnl.Rule{Priority: priorityOthers, From: rtnl.HostPrefix(a), Goto: priorityPassed})
	}
	for _, name := range further {
		add(rtnl.Rule{Priority: priorityOthersBound, Out: name, Goto: priorityPassed})
	}
	if slices.ContainsFunc(s.Egresses, func(e Egress) bool { return e.OriginatingOnly }) {
		add(rtnl.Rule{Priority: priorityOwnWay, Mark: markOwnWay, Mask: markOwnWay, Table: unix.RT_TABLE_MAIN})
	}
	for _, n := range nearby(family) {
		add(rtnl.Rule{Priority: priorityLinkLocal, To: n, Table: unix.RT_TABLE_MAIN})
	}
	for _, a := range s.within(family) {
		add(rtnl.Rule{Priority: priorityOuter, To: rtnl.HostPrefix(a), Table: unix.RT_TABLE_MAIN})
	}
	for _, e := range s.Egresses {
		if len(e.destinations(family)) == 0 {
			continue
		}
		for _, g := range e.nextHops(family) {
			add(rtnl.Rule{Priority: priorityGateways, Mark: markOf(g.ID), Mask: markGateway, Table: tableGateways + g.ID})
		}
	}
	add(rtnl.Rule{Priority: priorityDestination, Table: tableDestinations})
	i := 0
	for _, n := range s.ClusterNetworks {
		if rtnl.FamilyOf(n.Addr()) == family {
			add(rtnl.Rule{Priority: min(priorityCluster+i, priorityClusterLast), To: n.Masked(), Table: unix.RT_TABLE_MAIN})
			i++
		}
	}
	if passes {
		add(rtnl.Rule{Priority: priorityPassed})
	}
	for _, a := range s.others(family) {
		add(rtnl.Rule{Priority: priorityOthersLast, From: rtnl.HostPrefix(a), Goto: priorityEnd})
	}
	for _, name := range further {
		add(rtnl.Rule{Priority: priorityOthersLast, Out: name, Goto: priorityEnd})
	}
	add(rtnl.Rule{Priority: priorityDefault, Table: tableDefault})
	if passes {
		add(rtnl.Rule{Priority: priorityEnd})
	}
	slices.SortStableFunc(list, func(a, b rtnl.Rule) int { return cmp.Compare(a.Priority, b.Priority) })
	return slices.Compact(list)
}

func markOf(id int) uint32 { return uint32(id) << markShift }

func (s Setup) others(family int) []netip.Addr {
	list := slices.DeleteFunc(slices.Clone(s.Others), func(a netip.Addr) bool { return rtnl.FamilyOf(a) != family })
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list)
}

// within lists the ends of tunnels that are within a destination of the pod's Egresses, so that their packets would
// enter a tunnel again. Networks of the cluster are exempt from default routes.
func (s Setup) within(family int) []netip.Addr {
	var list []netip.Addr
	for _, e := range s.Egresses {
		for _, a := range e.ends(family) {
			if s.goes(a) {
				list = append(list, a)
			}
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list)
}

// ends are the outer destinations of an Egress's tunnels.
func (e Egress) ends(family int) []netip.Addr {
	if a := tunnel.AddrOf(e.Service, family); a.IsValid() {
		return []netip.Addr{a}
	}
	var list []netip.Addr
	for _, g := range e.nextHops(family) {
		list = append(list, tunnel.AddrOf(g.Addrs, family))
	}
	return list
}

// goes reports whether packets to an address go through an Egress.
func (s Setup) goes(a netip.Addr) bool {
	has := func(p netip.Prefix) bool { return p.Contains(a) }
	inCluster := slices.ContainsFunc(s.ClusterNetworks, has)
	return slices.ContainsFunc(s.Egresses, func(e Egress) bool {
		return slices.ContainsFunc(e.Destinations, func(d netip.Prefix) bool { return has(d) && (d.Bits() > 0 || !inCluster) })
	})
}
