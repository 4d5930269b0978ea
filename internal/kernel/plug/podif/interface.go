package podif

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Desired and observed state of a port's interface, and their differences. Configure and Check are based on them.

func linkOf(name string, i plug.Interface) rtnl.Link {
	return rtnl.Link{Name: name, MAC: i.MAC, MTU: i.MTU, Where: " in the pod"}
}

// address is added without the kernel's own route to its subnet, as another interface may have that route, and
// without duplicate address detection, as a VPC has no duplicates.
func address(p netip.Prefix) *netlink.Addr {
	a := &netlink.Addr{IPNet: rtnl.IPNet(p), Flags: unix.IFA_F_NOPREFIXROUTE}
	if p.Addr().Is6() {
		a.Flags |= unix.IFA_F_NODAD
	}
	return a
}

// routesOf lists the routes of an interface, on-link ones first, as the others need them to reach their gateways.
func routesOf(index int, i plug.Interface) []netlink.Route {
	var on, by []netlink.Route
	route := func(dst netip.Prefix) netlink.Route {
		return netlink.Route{LinkIndex: index, Family: rtnl.FamilyOf(dst.Addr()), Dst: rtnl.IPNet(dst), Protocol: rtnl.Protocol}
	}
	onLink := map[netip.Prefix]bool{}
	addOnLink := func(dst netip.Prefix, src netip.Addr) {
		if onLink[dst] {
			return
		}
		onLink[dst] = true
		r := route(dst)
		r.Scope = rtnl.ScopeFor(dst.Addr(), netlink.SCOPE_LINK)
		if src.IsValid() {
			r.Src = src.AsSlice()
		}
		on = append(on, r)
	}
	for _, p := range i.Addresses {
		if p.Bits() < p.Addr().BitLen() {
			addOnLink(p.Masked(), p.Addr())
		}
	}
	lead := func(dst netip.Prefix, via netip.Addr) {
		r := route(dst)
		r.Gw = via.AsSlice()
		src, near := sourceFor(i, via)
		if !near {
			r.Flags = int(netlink.FLAG_ONLINK)
		}
		if src.IsValid() {
			r.Src = src.AsSlice()
		}
		by = append(by, r)
	}
	for _, r := range i.Routes {
		if r.Via.IsValid() {
			lead(r.Dst, r.Via)
		} else {
			src, _ := sourceFor(i, r.Dst.Addr())
			addOnLink(r.Dst, src)
		}
	}
	for _, g := range i.Gateways {
		lead(netip.PrefixFrom(rtnl.Unspecified(g), 0), g)
	}
	return append(on, by...)
}

// sourceFor is the source address of packets sent through a neighbour: one in the neighbour's subnet (near), or else
// the first of its family.
func sourceFor(i plug.Interface, neighbour netip.Addr) (src netip.Addr, near bool) {
	for _, p := range i.Addresses {
		if p.Addr().Is4() != neighbour.Is4() {
			continue
		}
		if p.Masked().Contains(neighbour) && p.Bits() < p.Addr().BitLen() {
			return p.Addr(), true
		}
		if !src.IsValid() {
			src = p.Addr()
		}
	}
	return src, false
}

const mainTable = unix.RT_TABLE_MAIN

// differences are the differences in one family. Extra objects come from an earlier Configure, not from the pod
// itself: each address from Configure has a source rule.
type differences struct {
	addresses rtnl.Diff[netip.Prefix]
	routes    rtnl.Diff[netlink.Route]
	rules     rtnl.Diff[netip.Addr] // addresses of the source rules
}

// differences compares a link with an interface in one family. from are the addresses that have source rules.
func (s *Namespace) differences(l *netlink.LinkAttrs, i plug.Interface, family int, from []netip.Addr) (d differences, err error) {
	var prefixes []netip.Prefix
	var addrs []netip.Addr
	for _, p := range i.Addresses {
		if rtnl.FamilyOf(p.Addr()) == family {
			prefixes, addrs = append(prefixes, p), append(addrs, p.Addr())
		}
	}
	d.rules = rtnl.Kind[netip.Addr, netip.Addr]{Key: func(a netip.Addr) netip.Addr { return a }}.Compare(addrs, from)

	list, err := rtnl.Whole(func() ([]netlink.Addr, error) { return s.NL.AddrList(rtnl.LinkRef(l.Index), family) })
	if err != nil {
		return d, fmt.Errorf("list addresses: %w", err)
	}
	var have []netip.Prefix
	for _, a := range list {
		have = append(have, rtnl.PrefixOf(a.IPNet))
	}
	d.addresses = s.addressKind(l).Compare(prefixes, have)
	d.addresses.Extra = slices.DeleteFunc(d.addresses.Extra, func(p netip.Prefix) bool { return !slices.Contains(from, p.Addr()) })

	var desired, observed []netlink.Route
	for _, r := range routesOf(l.Index, i) {
		if r.Family != family {
			continue
		}
		for _, r.Table = range tables(l.Index) {
			desired = append(desired, r)
		}
	}
	for _, table := range tables(l.Index) {
		list, err := rtnl.Whole(func() ([]netlink.Route, error) {
			return s.NL.RouteListFiltered(family, &netlink.Route{Table: table, LinkIndex: l.Index}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_OIF)
		})
		if err != nil {
			return d, fmt.Errorf("list routes: %w", err)
		}
		observed = append(observed, list...)
	}
	d.routes = s.routeKind().Compare(desired, observed)
	d.routes.Extra = slices.DeleteFunc(d.routes.Extra, func(r netlink.Route) bool { return r.Protocol != rtnl.Protocol })
	return d, nil
}

// tables are the tables with the routes of a link.
func tables(index int) []int { return []int{mainTable, rtnl.SourceTable(index)} }

func (s *Namespace) addressKind(l *netlink.LinkAttrs) rtnl.Kind[netip.Prefix, netip.Prefix] {
	return rtnl.Kind[netip.Prefix, netip.Prefix]{
		Key:    func(p netip.Prefix) netip.Prefix { return p },
		Name:   func(p netip.Prefix) string { return "address " + p.String() },
		Remove: func(p netip.Prefix) error { return s.NL.AddrDel(rtnl.LinkRef(l.Index), address(p)) },
	}
}

func (s *Namespace) routeKind() rtnl.Kind[netlink.Route, rtnl.Route] {
	return rtnl.Kind[netlink.Route, rtnl.Route]{
		Key:    rtnl.RouteOf,
		Name:   func(r netlink.Route) string { return "route " + r.String() },
		Remove: func(r netlink.Route) error { return s.NL.RouteDel(&r) },
	}
}
