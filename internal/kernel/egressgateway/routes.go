package egressgateway

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Where answers find their way: a table with a route into the tunnel for each client. All that is
// forwarded looks it up before the main table, and of what the gateway sends itself that which has the
// mark. The rest does not, above all the tunnels' own packets, which go to the same addresses.
const (
	ReturnTable = 117
	returnPref  = 1900
	returnMark  = 117
)

// Routers are the addresses that default routes of the main table lead through: on many networks one
// of the pod's node.
func (k *Kernel) Routers() (list []netip.Addr, err error) {
	for _, of := range families {
		routes, err := rtnl.Whole(func() ([]netlink.Route, error) {
			return k.nl.RouteListFiltered(of, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST)
		})
		if err != nil {
			return nil, fmt.Errorf("list default routes: %w", err)
		}
		for _, r := range routes {
			if a, ok := netip.AddrFromSlice(r.Gw); ok {
				list = append(list, a.Unmap())
			}
		}
	}
	return list, nil
}

// returnRules adds the rules of a family that are not there.
func (k *Kernel) returnRules(of int) error {
	forwarded := netlink.NewRule()
	forwarded.IifName, forwarded.Invert = "lo", true
	marked := netlink.NewRule()
	marked.Mark = returnMark
	there, err := rtnl.Whole(func() ([]netlink.Rule, error) { return k.nl.RuleList(of) })
	if err != nil {
		return fmt.Errorf("list rules: %w", err)
	}
	for _, want := range []*netlink.Rule{forwarded, marked} {
		want.Family, want.Priority, want.Table, want.Protocol = of, returnPref, ReturnTable, rtnl.Protocol
		if slices.ContainsFunc(there, func(r netlink.Rule) bool {
			return r.Priority == want.Priority && r.Table == want.Table && r.IifName == want.IifName && r.Invert == want.Invert && r.Mark == want.Mark
		}) {
			continue
		}
		if err := k.nl.RuleAdd(want); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add rule %v: %w", want, err)
		}
	}
	return nil
}

// listRoutes lists the addresses that routes of the table lead to.
func (k *Kernel) listRoutes() (map[netip.Addr]bool, error) {
	list := map[netip.Addr]bool{}
	for _, of := range families {
		routes, err := rtnl.Whole(func() ([]netlink.Route, error) {
			return k.nl.RouteListFiltered(of, &netlink.Route{Table: ReturnTable}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, fmt.Errorf("list routes to clients: %w", err)
		}
		for _, r := range routes {
			list[rtnl.RouteDst(r).Addr()] = true
		}
	}
	return list, nil
}

// setRoutes removes routes of those that are gone and adds those that are missing of the others. Of a
// client of a family that the gateway has no address of there is none.
func (k *Kernel) setRoutes(c change) error {
	index := k.known.index
	wanted := func(a netip.Addr) bool {
		_, stays := k.known.members[a]
		_, added := c.added[a]
		return (stays || added) && index[rtnl.FamilyOf(a)] != 0
	}
	for a := range maps.Clone(k.known.routes) {
		if wanted(a) {
			continue
		}
		if err := k.nl.RouteDel(route(a, 0)); err != nil && !rtnl.IsGone(err) {
			return fmt.Errorf("remove the route to client %s: %w", a, err)
		}
		delete(k.known.routes, a)
	}
	for _, list := range []map[netip.Addr]string{k.known.members, c.added} {
		for a := range list {
			if k.known.routes[a] || !wanted(a) {
				continue
			}
			if err := k.nl.RouteReplace(route(a, index[rtnl.FamilyOf(a)])); err != nil {
				return fmt.Errorf("add the route to client %s: %w", a, err)
			}
			k.known.routes[a] = true
		}
	}
	return nil
}

func route(a netip.Addr, index int) *netlink.Route {
	return &netlink.Route{
		LinkIndex: index, Dst: rtnl.IPNet(rtnl.HostPrefix(a)), Table: ReturnTable, Protocol: rtnl.Protocol,
		Scope: rtnl.ScopeFor(a, netlink.SCOPE_LINK), Family: rtnl.FamilyOf(a),
	}
}
