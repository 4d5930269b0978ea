package podif

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Check notes how a link of the pod differs from a port's interface.
func (s *Namespace) Check(name string, i plug.Interface, found *plug.Differences) error {
	link, err := s.Link(name)
	if err != nil {
		return err
	}
	if link == nil {
		found.Add("the pod lacks link %s", name)
		return nil
	}
	l := link.Attrs()
	if l.Flags&net.FlagUp == 0 {
		found.Add("%s is down in the pod", name)
	}
	if !bytes.Equal(l.HardwareAddr, i.MAC) {
		found.Add("%s has MAC address %s in the pod, not %s", name, l.HardwareAddr, i.MAC)
	}
	if i.MTU != 0 && l.MTU != i.MTU {
		found.Add("%s has MTU %d in the pod, not %d", name, l.MTU, i.MTU)
	}
	for _, family := range families(i) {
		for _, step := range []func(*netlink.LinkAttrs, plug.Interface, int, *plug.Differences) error{s.addresses, s.routes, s.rules} {
			if err := step(l, i, family, found); err != nil {
				return err
			}
		}
	}
	return nil
}

// families lists those that a port has addresses of.
func families(i plug.Interface) []int {
	var list []int
	for _, p := range i.Addresses {
		if f := rtnl.FamilyOf(p.Addr()); !slices.Contains(list, f) {
			list = append(list, f)
		}
	}
	return list
}

func (s *Namespace) addresses(l *netlink.LinkAttrs, i plug.Interface, family int, found *plug.Differences) error {
	list, err := rtnl.Whole(func() ([]netlink.Addr, error) { return s.NL.AddrList(rtnl.LinkRef(l.Index), family) })
	if err != nil {
		return fmt.Errorf("list addresses in %s: %w", s.Path, err)
	}
	for _, p := range i.Addresses {
		if rtnl.FamilyOf(p.Addr()) == family && !slices.ContainsFunc(list, func(a netlink.Addr) bool {
			return a.IPNet != nil && a.IPNet.String() == rtnl.IPNet(p).String()
		}) {
			found.Add("%s lacks address %s", l.Name, p)
		}
	}
	return nil
}

// routeKey is what has to be the same of a route; the metric follows from other interfaces.
type routeKey struct {
	dst    netip.Prefix
	via    string
	table  int
	source string
}

func keyOf(r netlink.Route, table int) routeKey {
	k := routeKey{dst: rtnl.RouteDst(r), table: table}
	if len(r.Gw) > 0 {
		k.via = r.Gw.String()
	}
	if len(r.Src) > 0 {
		k.source = r.Src.String()
	}
	return k
}

func (s *Namespace) routes(l *netlink.LinkAttrs, i plug.Interface, family int, found *plug.Differences) error {
	have := map[routeKey]bool{}
	for _, table := range tables(l.Index) {
		list, err := s.routesIn(table, l.Index, family)
		if err != nil {
			return err
		}
		for _, r := range list {
			have[keyOf(r, table)] = true
		}
	}
	for _, want := range routesOf(l.Index, i) {
		if want.Family != family {
			continue
		}
		if !have[keyOf(want, mainTable)] {
			found.Add("the pod lacks the route of %s to %s", l.Name, rtnl.RouteDst(want))
		}
		if !have[keyOf(want, rtnl.SourceTable(l.Index))] {
			found.Add("the pod lacks the route of what has an address of %s to %s", l.Name, rtnl.RouteDst(want))
		}
	}
	return nil
}

func (s *Namespace) rules(l *netlink.LinkAttrs, i plug.Interface, family int, found *plug.Differences) error {
	from, err := rtnl.SourceRules(l.Index, family, s.NL)
	if err != nil {
		return fmt.Errorf("%s: %w", s.Path, err)
	}
	for _, p := range i.Addresses {
		if rtnl.FamilyOf(p.Addr()) == family && !slices.Contains(from, p.Addr()) {
			found.Add("the pod lacks its rule for packets from %s", p.Addr())
		}
	}
	stale, err := s.stale(l.Index, family, i)
	if err != nil {
		return fmt.Errorf("%s: %w", s.Path, err)
	}
	for _, p := range stale {
		found.Add("%s has address %s, which the port does not have any more", l.Name, p)
	}
	return nil
}
