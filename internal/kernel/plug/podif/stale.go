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

// stale are the addresses of a family that an earlier Configure gave a link and that it is
// not to have any more. Each of Berth's has a rule that leads to the link's table, by which it
// is told from those that a pod added of its own. An address whose subnet has another
// prefix length now is among them.
func (s *Namespace) stale(index, family int, i plug.Interface) (list []netip.Prefix, err error) {
	from, err := rtnl.SourceRules(index, family, s.NL)
	if err != nil || len(from) == 0 {
		return nil, err
	}
	have, err := rtnl.Whole(func() ([]netlink.Addr, error) { return s.NL.AddrList(rtnl.LinkRef(index), family) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range from {
		host := netip.PrefixFrom(a, a.BitLen())
		at := slices.IndexFunc(have, func(h netlink.Addr) bool { return h.IP.Equal(a.AsSlice()) })
		if at >= 0 {
			ones, _ := have[at].Mask.Size()
			host = netip.PrefixFrom(a, ones)
		}
		wanted := slices.ContainsFunc(i.Addresses, func(p netip.Prefix) bool { return p.Addr() == a })
		if at < 0 && !wanted || at >= 0 && !slices.Contains(i.Addresses, host) {
			list = append(list, host)
		}
	}
	return list, nil
}

// takeBack removes what an earlier Configure gave a link and that it is not to have any
// more. It comes before what the link is to have: with the first address of a subnet the
// kernel takes the others of it, and their routes.
func (s *Namespace) takeBack(index int, i plug.Interface) error {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		from, err := rtnl.SourceRules(index, family, s.NL)
		if err != nil {
			return err
		}
		if len(from) == 0 {
			continue // nothing was configured yet
		}
		if err := s.takeRoutesBack(index, family, i); err != nil {
			return err
		}
		list, err := s.stale(index, family, i)
		if err != nil {
			return err
		}
		for _, p := range list {
			if err := s.NL.AddrDel(rtnl.LinkRef(index), address(p)); err != nil && !rtnl.IsGone(err) {
				return fmt.Errorf("remove address %s: %w", p, err)
			}
			if err := rtnl.RemoveSourceRule(index, p.Addr(), s.NL); err != nil {
				return err
			}
		}
	}
	return nil
}

// takeRoutesBack removes routes of Berth's that a link is not to have any more.
func (s *Namespace) takeRoutesBack(index, family int, i plug.Interface) error {
	wanted := map[routeKey]bool{}
	for _, r := range routesOf(index, i) {
		for _, table := range tables(index) {
			wanted[keyOf(r, table)] = true
		}
	}
	for _, table := range tables(index) {
		list, err := s.routesIn(table, index, family)
		if err != nil {
			return err
		}
		for _, r := range list {
			if r.Protocol != rtnl.Protocol || wanted[keyOf(r, table)] {
				continue
			}
			if err := s.NL.RouteDel(&r); err != nil && !rtnl.IsGone(err) {
				return fmt.Errorf("remove route %s: %w", r.String(), err)
			}
		}
	}
	return nil
}

const mainTable = 254

// tables are those that have the routes of a link.
func tables(index int) []int { return []int{mainTable, rtnl.SourceTable(index)} }

// routesIn lists the routes of a table that lead by a link.
func (s *Namespace) routesIn(table, index, family int) ([]netlink.Route, error) {
	list, err := rtnl.Whole(func() ([]netlink.Route, error) {
		return s.NL.RouteListFiltered(family, &netlink.Route{Table: table, LinkIndex: index}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_OIF)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes in %s: %w", s.Path, err)
	}
	for k := range list {
		list[k].Family = family
	}
	return list, nil
}
