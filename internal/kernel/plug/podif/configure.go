package podif

import (
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Configure turns a link of the pod into a port's interface, and removes configuration of an earlier call that i no
// longer contains. Errors: plug.ErrDefaultRoute.
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
	if err := s.removeStale(link.Attrs(), i); err != nil {
		return fmt.Errorf("remove the stale configuration of %s in %s: %w", name, s.Path, err)
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

// removeStale removes the configuration of an earlier Configure that is no longer desired. It runs first, because with
// the first address of a subnet the kernel also removes the other addresses of the subnet, and their routes.
func (s *Namespace) removeStale(l *netlink.LinkAttrs, i plug.Interface) error {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		from, err := rtnl.SourceRules(l.Index, family, s.NL)
		if err != nil {
			return err
		}
		if len(from) == 0 {
			continue // the link was not configured in this family
		}
		d, err := s.differences(l, i, family, from)
		if err != nil {
			return err
		}
		if _, err := s.routeKind().RemoveAll(d.routes.Extra); err != nil {
			return err
		}
		if _, err := s.addressKind(l).RemoveAll(d.addresses.Extra); err != nil {
			return err
		}
		for _, a := range d.rules.Extra {
			if err := rtnl.RemoveSourceRule(l.Index, a, s.NL); err != nil {
				return err
			}
		}
	}
	return nil
}

// shape sets the properties of a link other than addresses: MAC address, MTU and state up.
func (s *Namespace) shape(l *netlink.LinkAttrs, i plug.Interface) error {
	if _, err := linkOf(l.Name, i).Set(s.NL, l); err != nil {
		return fmt.Errorf("in %s: %w", s.Path, err)
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

// Silence prevents the pod's own namespace from sending on a link that belongs to a virtual machine.
func (s *Namespace) Silence(name string) error {
	err := rtnl.SetIPv6(s.NS, s.Sysctls, name, "disable_ipv6", "1")
	if err != nil && !errors.Is(err, os.ErrNotExist) { // a kernel without IPv6
		return fmt.Errorf("switch IPv6 off on %s in %s: %w", name, s.Path, err)
	}
	return nil
}

// ignoreAdvertisements makes a link ignore router advertisements of the VPC's subnet: a second default route would
// split the pod's traffic, and the VPC drops packets from an address that it did not assign.
func (s *Namespace) ignoreAdvertisements(name string) error {
	err := rtnl.SetIPv6(s.NS, s.Sysctls, name, "accept_ra", "0")
	if err != nil && !errors.Is(err, os.ErrNotExist) { // a kernel without IPv6
		return fmt.Errorf("have %s in %s ignore router advertisements: %w", name, s.Path, err)
	}
	return nil
}

// setRoute adds a route to the interface's own table, which is looked up for packets from its addresses, and to the
// main table, where existing routes of other interfaces are preferred. With first, this one is preferred.
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

// mayHaveDefault fails if another interface has the pod's default route.
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

// Forget removes state that the kernel keeps when a link of the pod is removed: the rules that look up its table.
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
