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

// ownTable is the table of what the pod sends.
func (b branch) ownTable() int { return datapath.BranchTableBase + b.id }

// podTable is the table that leads to the pod, and to others of its mode.
func (b branch) podTable() int {
	if b.enforcing == plug.Strict {
		return datapath.StrictTable
	}
	return datapath.StandardTable
}

// routes are those of a branch, of each family: the subnet's router, all by it, and the pod. The pod is in its
// own table too, as a Service may lead back to it.
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

// route has the node know the pod as its neighbour, and puts the routes in place. Those to the pod that it
// had with another VLAN are removed: the branch that gets that VLAN would reach the pod past its groups.
func (p *Plugger) route(b branch, e ends, mac net.HardwareAddr) error {
	for _, h := range b.hops {
		if err := p.node.NL.NeighSet(neighbour(e.pod, h.addr, mac)); err != nil {
			return fmt.Errorf("add neighbour %s to %s: %w", h.addr, b.pod, err)
		}
	}
	for _, r := range b.routes(e) {
		if err := p.node.NL.RouteReplace(&r); err != nil {
			return fmt.Errorf("add route %s of table %d: %w", rtnl.RouteDst(r), r.Table, err)
		}
	}
	stale, err := p.toPod(b, e)
	if err != nil {
		return err
	}
	for _, r := range stale {
		if err := p.node.NL.RouteDel(&r); err != nil && !rtnl.IsGone(err) {
			return fmt.Errorf("remove route %s of table %d: %w", rtnl.RouteDst(r), r.Table, err)
		}
	}
	return nil
}

// toPod lists the routes to the pod that are in a table that is not to have them.
func (p *Plugger) toPod(b branch, e ends) (stale []netlink.Route, err error) {
	for _, h := range b.hops {
		have, err := rtnl.Whole(func() ([]netlink.Route, error) {
			return p.node.NL.RouteListFiltered(h.family(), &netlink.Route{Table: unix.RT_TABLE_UNSPEC, LinkIndex: e.pod}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_OIF)
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

// checkRoutes notes which routes are missing.
func (p *Plugger) checkRoutes(b branch, e ends, found *plug.Differences) error {
	for _, r := range b.routes(e) {
		have, err := rtnl.Whole(func() ([]netlink.Route, error) {
			return p.node.NL.RouteListFiltered(r.Family, &netlink.Route{Table: r.Table, LinkIndex: r.LinkIndex}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_OIF)
		})
		if err != nil {
			return fmt.Errorf("list routes of table %d: %w", r.Table, err)
		}
		if !slices.ContainsFunc(have, func(h netlink.Route) bool { return rtnl.RouteDst(h) == rtnl.RouteDst(r) && h.Gw.Equal(r.Gw) }) {
			found.Add("table %d lacks the route to %s", r.Table, rtnl.RouteDst(r))
		}
	}
	stale, err := p.toPod(b, e)
	for _, r := range stale {
		found.Add("table %d has a route to %s", r.Table, rtnl.RouteDst(r))
	}
	return err
}

// checkNeighbours notes whether the two ends of the veth know each other.
func (p *Plugger) checkNeighbours(pod *podif.Namespace, w plug.Want, link *netlink.LinkAttrs, found *plug.Differences) error {
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
		if err := checkNeighbour(p.node.NL, "the node", link.Index, h.addr, w.Interface.MAC, found); err != nil {
			return err
		}
	}
	return nil
}

func checkNeighbour(in *netlink.Handle, who string, link int, addr netip.Addr, mac net.HardwareAddr, found *plug.Differences) error {
	list, err := rtnl.Whole(func() ([]netlink.Neigh, error) { return in.NeighList(link, rtnl.FamilyOf(addr)) })
	if err != nil {
		return fmt.Errorf("list neighbours of %s: %w", who, err)
	}
	if !slices.ContainsFunc(list, func(n netlink.Neigh) bool {
		return n.IP.Equal(addr.AsSlice()) && n.State&netlink.NUD_PERMANENT != 0 && bytes.Equal(n.HardwareAddr, mac)
	}) {
		found.Add("%s lacks the permanent neighbour entry of %s at %s", who, addr, mac)
	}
	return nil
}
