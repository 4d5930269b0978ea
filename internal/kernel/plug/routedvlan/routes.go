package routedvlan

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// routes manages the routes and neighbours of branches in the node's namespace.
type routes struct {
	nl *netlink.Handle
	ns netns.NsHandle
}

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

// kind describes the routes.
func (t *routes) kind() rtnl.Kind[netlink.Route, rtnl.Route] {
	return rtnl.Kind[netlink.Route, rtnl.Route]{
		Key: rtnl.RouteOf, Name: func(r netlink.Route) string { return fmt.Sprintf("route %s of table %d", rtnl.RouteDst(r), r.Table) },
		Add:    func(r netlink.Route) error { return t.nl.RouteReplace(&r) },
		Remove: func(r netlink.Route) error { return t.nl.RouteDel(&r) },
	}
}

// set adds the pod as a neighbour and sets the routes. It removes routes to the pod in tables of an earlier VLAN, as the
// next branch with that VLAN would reach the pod past its security groups.
func (t *routes) set(b branch, e ends, mac net.HardwareAddr) error {
	for _, h := range b.hops {
		if err := t.nl.NeighSet(rtnl.PermanentNeighbour(e.pod, h.addr, mac)); err != nil {
			return fmt.Errorf("add neighbour %s to %s: %w", h.addr, b.pod, err)
		}
	}
	d, err := t.differences(b, e)
	if err != nil {
		return err
	}
	// Existing routes are replaced too, as they may differ in attributes outside of their key, such as the protocol.
	if _, err := t.kind().Set(rtnl.Diff[netlink.Route]{Missing: b.routes(e)}); err != nil {
		return err
	}
	_, err = t.kind().RemoveAll(d.Extra)
	return err
}

// differences compares the routes of a branch with the observed ones on its links. Extra ones are stale routes to the
// pod, in tables other than the branch's.
func (t *routes) differences(b branch, e ends) (d rtnl.Diff[netlink.Route], err error) {
	var have []netlink.Route
	for _, h := range b.hops {
		for _, link := range []int{e.pod, e.vlan} {
			list, err := rtnl.Whole(func() ([]netlink.Route, error) {
				return t.nl.RouteListFiltered(h.family(), &netlink.Route{Table: unix.RT_TABLE_UNSPEC, LinkIndex: link}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_OIF)
			})
			if err != nil {
				return d, fmt.Errorf("list routes of %s: %w", b.pod, err)
			}
			have = append(have, list...)
		}
	}
	d = t.kind().Compare(b.routes(e), have)
	d.Extra = slices.DeleteFunc(d.Extra, func(r netlink.Route) bool {
		return r.Protocol != rtnl.Protocol || r.LinkIndex != e.pod || r.Table == b.ownTable() || r.Table == b.podTable()
	})
	return d, nil
}

// check adds missing and stale routes to the differences.
func (t *routes) check(b branch, e ends, found *plug.Differences) error {
	d, err := t.differences(b, e)
	for _, r := range d.Missing {
		found.Add("table %d lacks the route to %s", r.Table, rtnl.RouteDst(r))
	}
	for _, r := range d.Extra {
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
			if err := checkNeighbour(pod.NS, "the pod", rtnl.PermanentNeighbour(l.Attrs().Index, datapath.PodGateway(h.addr), link.HardwareAddr), found); err != nil {
				return err
			}
		}
		if err := checkNeighbour(t.ns, "the node", rtnl.PermanentNeighbour(link.Index, h.addr, w.Interface.MAC), found); err != nil {
			return err
		}
	}
	return nil
}

func checkNeighbour(in netns.NsHandle, who string, desired *netlink.Neigh, found *plug.Differences) error {
	has, err := rtnl.HasNeighbour(in, desired)
	if err != nil {
		return fmt.Errorf("look up a neighbour of %s: %w", who, err)
	}
	if !has {
		found.Add("%s lacks the permanent neighbour entry of %s at %s", who, desired.IP, desired.HardwareAddr)
	}
	return nil
}
