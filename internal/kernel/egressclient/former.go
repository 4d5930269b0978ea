package egressclient

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/kernel/tunnel"
)

// A pod that Coil made a client of its Egresses has Coil's tunnels, rules and routes. The routes are in the same tables as
// Berth's, and those of IPv4 precede them. While the pod uses an Egress of Berth, Coil's routes have a metric that comes after
// all of Berth's, so that they can be put back (package migrate/coil removes them for good).

// FormerProtocol is the protocol of Coil's routes.
const FormerProtocol = 30

// aside is added to the metric of a route of Coil that is not in force.
const aside = 1 << 30

// former are the routes of Coil to destinations in a pod, which another network made.
type former struct {
	nl             *netlink.Handle
	do             func(what string, change func() error) error // makes one change
	inForce, aside []netlink.Route
}

func (f former) any() bool { return len(f.inForce)+len(f.aside) > 0 }

// Former reports whether a pod has tunnels of Coil, and whether its packets go through them.
func Former(h *netlink.Handle) (has, inForce bool, err error) {
	f, err := formerOf(h)
	return f.any(), len(f.inForce) > 0, err
}

// formerOf reads Coil's routes. In a gateway of Coil the same table has routes to its clients, which are single addresses.
func formerOf(h *netlink.Handle) (f former, err error) {
	links, err := rtnl.Whole(h.LinkList)
	if err != nil {
		return f, fmt.Errorf("list links: %w", err)
	}
	client := false
	for _, l := range links {
		switch l.Attrs().Name {
		case FormerMark:
			client = true
		case FormerGatewayMark:
			return f, nil
		}
	}
	if !client {
		return f, nil
	}
	for _, family := range tunnel.Families {
		list, err := rtnl.Whole(func() ([]netlink.Route, error) {
			return h.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC, Protocol: FormerProtocol}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
		})
		if err != nil {
			return f, fmt.Errorf("list Coil's routes: %w", err)
		}
		for _, r := range list {
			switch {
			case r.Table != tableDestinations && r.Table != tableDefault:
			case r.Priority >= aside:
				f.aside = append(f.aside, r)
			default:
				f.inForce = append(f.inForce, r)
			}
		}
	}
	return f, nil
}

// Names of links that Coil gives clients and gateways as a mark. Gateways have both.
const (
	FormerMark        = "fou-dummy"
	FormerGatewayMark = "egress-dummy"
)

// readFormer reads Coil's routes of a pod that another network made.
func readFormer(k *kernel, s Setup) (f former, err error) {
	if s.Adopted {
		f, err = formerOf(k.at.NL)
	}
	f.nl, f.do = k.at.NL, k.do
	return f, err
}

// keep copies Coil's routes to metrics at which they are not used.
func (f former) keep() error {
	for _, r := range f.inForce {
		kept := movedTo(r, r.Priority+aside)
		if err := f.do("set aside Coil's "+nameOf(r), func() error { return f.nl.RouteReplace(&kept) }); err != nil {
			return err
		}
	}
	return nil
}

// leave removes Coil's routes that precede Berth's. Those of IPv6 with the same metric have been replaced.
func (f former) leave() error { return f.remove(f.inForce) }

func (f former) remove(list []netlink.Route) error {
	for _, r := range list {
		if err := f.do("remove Coil's "+nameOf(r), func() error { return ifThere(f.nl.RouteDel(&r)) }); err != nil {
			return err
		}
	}
	return nil
}

// restore puts Coil's routes in force again, in place of Berth's.
func (f former) restore() error {
	for _, r := range f.aside {
		back := movedTo(r, r.Priority-aside)
		if err := f.do("restore Coil's "+nameOf(back), func() error { return f.nl.RouteReplace(&back) }); err != nil {
			return err
		}
	}
	return nil
}

// movedTo returns a route with another metric.
func movedTo(r netlink.Route, metric int) netlink.Route {
	return netlink.Route{
		Family: rtnl.FamilyOf(rtnl.RouteDst(r).Addr()), Dst: rtnl.IPNet(rtnl.RouteDst(r)), Table: r.Table, Priority: metric,
		Protocol: r.Protocol, Scope: r.Scope, LinkIndex: r.LinkIndex, Gw: r.Gw, Src: r.Src,
	}
}

func nameOf(r netlink.Route) string {
	return fmt.Sprintf("route %s in table %d", rtnl.RouteDst(r), r.Table)
}

// release removes everything of Berth's egress. A pod of Coil has its tunnels again; they need the FoU port.
func (f former) release(k *kernel, port uint16) error {
	if err := f.restore(); err != nil {
		return err
	}
	if err := k.clear(port, f.any()); err != nil {
		return err
	}
	return f.remove(f.aside)
}
