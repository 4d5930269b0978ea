package routedvlan

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// routes manages the routes and neighbours of branches in the node's namespace.
type routes struct{ nl *netlink.Handle }

// ownTable is the routing table for packets from the pod.
func (b branch) ownTable() int { return datapath.BranchTableBase + b.id }

// podTable is the shared table with the routes to all pods of the same mode.
func (b branch) podTable() int {
	if b.enforcing == plug.Strict {
		return datapath.StrictTable
	}
	return datapath.StandardTable
}

// routes are the routes of a branch for each family: to the subnet's router, the default route, and
// the routes to the pod. The pod's own table includes a route to the pod, because a Service may
// have the pod itself as its endpoint.
func (b branch) routes(e ends) (list []netlink.Route) {
	route := func(table, link int, dst netip.Prefix) netlink.Route {
		return netlink.Route{
			Family: rtnl.FamilyOf(dst.Addr()), LinkIndex: link, Table: table, Protocol: rtnl.Protocol,
			Dst: rtnl.IPNet(dst), Scope: rtnl.ScopeFor(dst.Addr(), netlink.SCOPE_LINK),
		}
	}
	for _, h := range b.hops {
		out := route(b.ownTable(), e.vlan, netip.PrefixFrom(rtnl.Unspecified(h.gateway), 0))
		out.Gw, out.Flags, out.Scope = h.gateway.AsSlice(), int(netlink.FLAG_ONLINK), netlink.SCOPE_UNIVERSE
		list = append(list,
			route(b.ownTable(), e.vlan, rtnl.HostPrefix(h.gateway)), out,
			route(b.ownTable(), e.pod, rtnl.HostPrefix(h.addr)), route(b.podTable(), e.pod, rtnl.HostPrefix(h.addr)),
		)
	}
	return list
}

// set adds the pod as a neighbour and sets the routes. It removes routes to the pod in tables of
// an earlier VLAN: the next branch with that VLAN would reach the pod past its security groups.
func (t *routes) set(b branch, e ends, mac net.HardwareAddr) error {
	for _, h := range b.hops {
		if err := t.nl.NeighSet(neighbour(e.pod, h.addr, mac)); err != nil {
			return fmt.Errorf("add neighbour %s to %s: %w", h.addr, b.pod, err)
		}
	}
	for _, r := range b.routes(e) {
		if err := t.nl.RouteReplace(&r); err != nil {
			return fmt.Errorf("add route %s of table %d: %w", rtnl.RouteDst(r), r.Table, err)
		}
	}
	stale, err := t.stale(b, e)
	if err != nil {
		return err
	}
	for _, r := range stale {
		if err := t.nl.RouteDel(&r); err != nil && !rtnl.IsGone(err) {
			return fmt.Errorf("remove route %s of table %d: %w", rtnl.RouteDst(r), r.Table, err)
		}
	}
	return nil
}

// stale lists stale routes to the pod: those in tables other than the branch's.
func (t *routes) stale(b branch, e ends) (stale []netlink.Route, err error) {
	for _, h := range b.hops {
		have, err := rtnl.Whole(func() ([]netlink.Route, error) {
			return t.nl.RouteListFiltered(h.family(), &netlink.Route{Table: unix.RT_TABLE_UNSPEC, LinkIndex: e.pod}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_OIF)
		})
		if err != nil {
			return nil, fmt.Errorf("list routes by %s: %w", b.pod, err)
		}
		stale = append(stale, slices.DeleteFunc(have, func(r netlink.Route) bool {
			return r.Protocol != rtnl.Protocol || r.Table == b.ownTable() || r.Table == b.podTable()
		})...)
	}
	return stale, nil
}

// check adds missing and stale routes to the differences.
func (t *routes) check(b branch, e ends, found *plug.Differences) error {
	for _, r := range b.routes(e) {
		have, err := rtnl.Whole(func() ([]netlink.Route, error) {
			return t.nl.RouteListFiltered(r.Family, &netlink.Route{Table: r.Table, LinkIndex: r.LinkIndex}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_OIF)
		})
		if err != nil {
			return fmt.Errorf("list routes of table %d: %w", r.Table, err)
		}
		if !slices.ContainsFunc(have, func(h netlink.Route) bool { return rtnl.RouteDst(h) == rtnl.RouteDst(r) && h.Gw.Equal(r.Gw) }) {
			found.Add("table %d lacks the route to %s", r.Table, rtnl.RouteDst(r))
		}
	}
	stale, err := t.stale(b, e)
	for _, r := range stale {
		found.Add("table %d has a route to %s", r.Table, rtnl.RouteDst(r))
	}
	return err
}

// checkNeighbours adds missing neighbour entries of both ends of the veth.
func (t *routes) checkNeighbours(pod *podif.Namespace, w plug.Want, link *netlink.LinkAttrs, found *plug.Differences) error {
	l, err := pod.Link(w.Pod.IfName)
	if err != nil {
		return err
	}
	for _, h := range branchOf(w).hops {
		if l != nil {
			if err := checkNeighbour(pod.NL, "the pod", l.Attrs().Index, datapath.PodGateway(h.addr), link.HardwareAddr, found); err != nil {
				return err
			}
		}
		if err := checkNeighbour(t.nl, "the node", link.Index, h.addr, w.Interface.MAC, found); err != nil {
			return err
		}
	}
	return nil
}

func checkNeighbour(in *netlink.Handle, who string, link int, addr netip.Addr, mac net.HardwareAddr, found *plug.Differences) error {
	list, err := rtnl.PermanentNeighbours(in, link, rtnl.FamilyOf(addr))
	if err != nil {
		return fmt.Errorf("list neighbours of %s: %w", who, err)
	}
	if !slices.ContainsFunc(list, func(n netlink.Neigh) bool { return n.IP.Equal(addr.AsSlice()) && bytes.Equal(n.HardwareAddr, mac) }) {
		found.Add("%s lacks the permanent neighbour entry of %s at %s", who, addr, mac)
	}
	return nil
}
