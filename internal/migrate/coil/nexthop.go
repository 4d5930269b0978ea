package coil

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// When a link loses its last IPv4 address, the kernel removes all IPv4 routes that lead to it, and neighbours. Packets
// that arrive before the routes are there again would be lost. Routes that lead to a nexthop object stay: it ends with
// the link, not with its addresses (linux/nexthop.h, since Linux 5.3).

const (
	nexthopBase = 0x19000000 // plus the index of the link
	attrID      = 1          // NHA_ID
	attrLink    = 5          // NHA_OIF
	attrRoute   = 30         // RTA_NH_ID
	lenMessage  = 8          // sizeof struct nhmsg
)

// heldRoute is a route to one address of a link.
type heldRoute struct {
	id    uint32
	route netlink.Route
}

// hold makes the route to an IPv4 address lead to a nexthop object of its link.
func (l *hostLinks) hold(link int, route netlink.Route) (heldRoute, error) {
	h := heldRoute{nexthopBase + uint32(link), route}
	err := rtnl.InNetns(l.ns, func() error {
		req := nl.NewNetlinkRequest(unix.RTM_NEWNEXTHOP, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
		req.AddData(message{unix.AF_INET})
		req.AddData(nl.NewRtAttr(attrID, number(h.id)))
		req.AddData(nl.NewRtAttr(attrLink, number(uint32(link))))
		_, err := req.Execute(unix.NETLINK_ROUTE, 0)
		return err
	})
	if err != nil {
		return h, fmt.Errorf("make a nexthop: %w", err)
	}
	msg := nl.NewRtMsg()
	msg.Family, msg.Dst_len, msg.Table = unix.AF_INET, 32, unix.RT_TABLE_UNSPEC
	msg.Protocol, msg.Scope = uint8(route.Protocol), uint8(route.Scope)
	err = rtnl.InNetns(l.ns, func() error {
		req := nl.NewNetlinkRequest(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
		req.AddData(msg)
		req.AddData(nl.NewRtAttr(unix.RTA_DST, rtnl.RouteDst(route).Addr().AsSlice()))
		req.AddData(nl.NewRtAttr(unix.RTA_TABLE, number(uint32(route.Table))))
		req.AddData(nl.NewRtAttr(attrRoute, number(h.id)))
		_, err := req.Execute(unix.NETLINK_ROUTE, 0)
		return err
	})
	if err != nil {
		return h, fmt.Errorf("route %s to a nexthop: %w", rtnl.RouteDst(route), err)
	}
	return h, nil
}

// release makes the route lead to the link itself again.
func (l *hostLinks) release(h heldRoute) error {
	if err := l.host.RouteReplace(&h.route); err != nil {
		return fmt.Errorf("set the route to %s: %w", rtnl.RouteDst(h.route), err)
	}
	return l.removeNexthop(h.id)
}

// removeNexthop removes a nexthop object, if it is there, with the routes that lead to it.
func (l *hostLinks) removeNexthop(id uint32) error {
	err := rtnl.InNetns(l.ns, func() error {
		req := nl.NewNetlinkRequest(unix.RTM_DELNEXTHOP, unix.NLM_F_ACK)
		req.AddData(message{})
		req.AddData(nl.NewRtAttr(attrID, number(id)))
		_, err := req.Execute(unix.NETLINK_ROUTE, 0)
		return err
	})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove nexthop %#x: %w", id, err)
	}
	return nil
}

// hasNexthop reports whether a killed process left a link's nexthop object.
func (l *hostLinks) hasNexthop(link int) (has bool, err error) {
	err = rtnl.InNetns(l.ns, func() error {
		req := nl.NewNetlinkRequest(unix.RTM_GETNEXTHOP, 0)
		req.AddData(message{})
		req.AddData(nl.NewRtAttr(attrID, number(nexthopBase+uint32(link))))
		_, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEXTHOP)
		return err
	})
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

// message is a struct nhmsg.
type message struct{ family uint8 }

func (message) Len() int { return lenMessage }

func (m message) Serialize() []byte { return append([]byte{m.family}, make([]byte, lenMessage-1)...) }

func number(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// withoutLast removes the IPv4 addresses of a link and keeps the route to an address behind it.
func (l *hostLinks) withoutLast(link netlink.Link, to netip.Addr, table int, addrs []netlink.Addr) error {
	routes, err := rtnl.Whole(func() ([]netlink.Route, error) {
		return l.host.RouteListFiltered(unix.AF_INET, &netlink.Route{Table: table, Dst: rtnl.IPNet(rtnl.HostPrefix(to))}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST)
	})
	if err != nil {
		return fmt.Errorf("list the routes to %s: %w", to, err)
	}
	// The block of a single address has an unreachable route to it.
	routes = slices.DeleteFunc(routes, func(r netlink.Route) bool { return r.Type != unix.RTN_UNICAST })
	if len(routes) != 1 || routes[0].LinkIndex != link.Attrs().Index && routes[0].LinkIndex != 0 {
		return fmt.Errorf("table %d has no route to %s by %s", table, to, link.Attrs().Name)
	}
	neighbours, err := rtnl.PermanentNeighbours(l.host, link.Attrs().Index, unix.AF_INET)
	if err != nil {
		return err
	}
	routes[0].LinkIndex = link.Attrs().Index
	held, err := l.hold(link.Attrs().Index, routes[0])
	if err != nil {
		return errors.Join(err, l.release(held))
	}
	for _, a := range addrs {
		if err := l.host.AddrDel(link, &a); err != nil && !rtnl.IsGone(err) {
			return errors.Join(fmt.Errorf("remove %s from %s: %w", a.IPNet, link.Attrs().Name, err), l.release(held))
		}
	}
	for _, nb := range neighbours {
		if err := l.host.NeighSet(&nb); err != nil {
			return errors.Join(fmt.Errorf("set the neighbour %s: %w", nb.IP, err), l.release(held))
		}
	}
	return l.release(held)
}
