package podif

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Configure sets a link of the pod up as a port's interface; what it was given before and is
// not to have any more goes. Errors: plug.ErrDefaultRoute.
func (s *Namespace) Configure(name string, i plug.Interface) error {
	link, err := s.NL.LinkByName(name)
	if err != nil {
		return fmt.Errorf("look up %s in %s: %w", name, s.Path, err)
	}
	if err := s.shape(link.Attrs(), i); err != nil {
		return err
	}
	index := link.Attrs().Index
	if i.Default {
		if err := s.mayHaveDefault(index, i); err != nil {
			return err
		}
	}
	if err := s.takeBack(index, i); err != nil {
		return fmt.Errorf("take back what %s in %s is not to have any more: %w", name, s.Path, err)
	}
	for _, p := range i.Addresses {
		if err := rtnl.AddAddress(address(p), index, name, s.NS, s.NL, s.Sysctls); err != nil {
			return fmt.Errorf("add address %s to %s in %s: %w", p, name, s.Path, err)
		}
	}
	for _, r := range routesOf(index, i) {
		if err := s.setRoute(r, i.Default); err != nil {
			return fmt.Errorf("add route %s to %s in %s: %w", r.String(), name, s.Path, err)
		}
	}
	for _, p := range i.Addresses {
		if err := rtnl.AddSourceRule(index, p.Addr(), s.NL); err != nil {
			return fmt.Errorf("%s in %s: %w", name, s.Path, err)
		}
	}
	return nil
}

// shape sets what a link has without addresses: MAC, MTU, up.
func (s *Namespace) shape(l *netlink.LinkAttrs, i plug.Interface) error {
	if !bytes.Equal(l.HardwareAddr, i.MAC) {
		if err := s.NL.LinkSetHardwareAddr(rtnl.LinkRef(l.Index), i.MAC); err != nil {
			return fmt.Errorf("give %s in %s the MAC address %s: %w", l.Name, s.Path, i.MAC, err)
		}
	}
	if i.MTU != 0 && l.MTU != i.MTU {
		if err := s.NL.LinkSetMTU(rtnl.LinkRef(l.Index), i.MTU); err != nil {
			return fmt.Errorf("give %s in %s the MTU %d: %w", l.Name, s.Path, i.MTU, err)
		}
	}
	if err := s.ignoreAdvertisements(l.Name); err != nil {
		return err
	}
	if i.Bare {
		if err := s.Silence(l.Name); err != nil {
			return err
		}
	}
	if err := s.NL.LinkSetUp(rtnl.LinkRef(l.Index)); err != nil {
		return fmt.Errorf("set %s up in %s: %w", l.Name, s.Path, err)
	}
	return nil
}

// Silence keeps the pod's own namespace from sending by a link that is a machine's.
func (s *Namespace) Silence(name string) error {
	err := rtnl.SetIPv6(s.NS, s.Sysctls, name, "disable_ipv6", "1")
	if err != nil && !errors.Is(err, os.ErrNotExist) { // a kernel without IPv6
		return fmt.Errorf("switch IPv6 off on %s in %s: %w", name, s.Path, err)
	}
	return nil
}

// ignoreAdvertisements: routers of a VPC's subnet tell of themselves and of prefixes. A pod has
// the addresses and routes of its ports and no others: a second default route would part its
// traffic, and the VPC drops what comes from an address that it did not give.
func (s *Namespace) ignoreAdvertisements(name string) error {
	err := rtnl.SetIPv6(s.NS, s.Sysctls, name, "accept_ra", "0")
	if err != nil && !errors.Is(err, os.ErrNotExist) { // a kernel without IPv6
		return fmt.Errorf("have %s in %s ignore router advertisements: %w", name, s.Path, err)
	}
	return nil
}

// address is on its link without the kernel's own route of its subnet, which would have no
// place beside that of another interface; and without a search for duplicates, of which a
// VPC has none.
func address(p netip.Prefix) *netlink.Addr {
	a := &netlink.Addr{IPNet: rtnl.IPNet(p), Flags: unix.IFA_F_NOPREFIXROUTE}
	if p.Addr().Is6() {
		a.Flags |= unix.IFA_F_NODAD
	}
	return a
}

// routesOf lists the routes of an interface, those on link first, as others lead by them.
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

// sourceFor is the address of the port that packets by a neighbour come from: one of its
// subnet, else the first of its family. near tells that there is one of its subnet.
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

// setRoute puts a route into the main table, behind those of other interfaces, and into the
// interface's own, which packets from its addresses look up.
func (s *Namespace) setRoute(r netlink.Route, first bool) error {
	own := r
	own.Table = rtnl.SourceTable(r.LinkIndex)
	if err := s.NL.RouteReplace(&own); err != nil {
		return err
	}
	if rtnl.RouteDst(r).Bits() == 0 && !first {
		r.Priority = rtnl.LaterMetric + r.LinkIndex
		return s.NL.RouteReplace(&r)
	}
	_, err := rtnl.SetRoute(&r, s.NL)
	return err
}

// mayHaveDefault refuses to take the pod's default route from another interface.
func (s *Namespace) mayHaveDefault(index int, i plug.Interface) error {
	for _, g := range i.Gateways {
		routes, err := s.mainRoutes(rtnl.FamilyOf(g))
		if err != nil {
			return err
		}
		for _, r := range routes {
			if rtnl.RouteDst(r).Bits() != 0 || r.LinkIndex == index || r.Priority >= rtnl.LaterMetric || r.Type != unix.RTN_UNICAST {
				continue
			}
			name := fmt.Sprintf("link %d", r.LinkIndex)
			if l, err := s.NL.LinkByIndex(r.LinkIndex); err == nil {
				name = l.Attrs().Name
			}
			return fmt.Errorf("%w: %s in %s", plug.ErrDefaultRoute, name, s.Path)
		}
	}
	return nil
}

func (s *Namespace) mainRoutes(family int) ([]netlink.Route, error) {
	routes, err := rtnl.Whole(func() ([]netlink.Route, error) { return s.NL.RouteList(nil, family) })
	if err != nil {
		return nil, fmt.Errorf("list routes in %s: %w", s.Path, err)
	}
	return routes, nil
}

// Forget removes what would outlast a link of the pod: the rules that lead to its table.
func (s *Namespace) Forget(index int) error {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		from, err := rtnl.SourceRules(index, family, s.NL)
		if err != nil {
			return fmt.Errorf("%s: %w", s.Path, err)
		}
		for _, a := range from {
			if err := rtnl.RemoveSourceRule(index, a, s.NL); err != nil {
				return fmt.Errorf("%s: %w", s.Path, err)
			}
		}
	}
	return nil
}
