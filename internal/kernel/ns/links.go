package ns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// doomed is the link group that links are put into before they are deleted
// together: the kernel's wait for each deleted veth is then shared by all.
const doomed = 0x626c

// deleteLinks deletes all veth links of a namespace, in which the calling thread
// is, and by that their peers wherever they are.
func deleteLinks(h *netlink.Handle) error {
	links, err := h.LinkList()
	for errors.Is(err, netlink.ErrDumpInterrupted) { // links changed meanwhile
		links, err = h.LinkList()
	}
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	n := 0
	for _, l := range links {
		if l.Type() != "veth" {
			continue
		}
		if err := h.LinkSetGroup(l, doomed); err != nil {
			if rtnl.IsNoLink(err) {
				continue
			}
			return fmt.Errorf("mark link %s for deletion: %w", l.Attrs().Name, err)
		}
		n++
	}
	if n == 0 {
		return nil
	}
	if err := deleteGroup(doomed); err != nil && !rtnl.IsNoLink(err) {
		return fmt.Errorf("delete %d links: %w", n, err)
	}
	return nil
}

// deleteGroup deletes all links of a group (RTM_DELLINK with IFLA_GROUP,
// rtnetlink(7)), which the netlink library has no call for.
func deleteGroup(group uint32) error {
	req := nl.NewNetlinkRequest(unix.RTM_DELLINK, unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(group)))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// DeleteLink deletes a link. A missing link is no error.
func DeleteLink(h *netlink.Handle, name string) error {
	l, err := h.LinkByName(name)
	if err == nil {
		err = h.LinkDel(l)
	}
	if err != nil && !rtnl.IsNoLink(err) {
		return fmt.Errorf("delete link %s: %w", name, err)
	}
	return nil
}

// Netlink runs fn on a thread in the namespace at path, with a handle that is open
// there until fn returns.
func Netlink(path string, fn func(h *netlink.Handle) error) error {
	return Do(path, func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("open rtnetlink: %w", err)
		}
		defer h.Close()
		return fn(h)
	})
}

// AddHost makes the namespace at path a host next to a router, of which h is a
// handle: its eth0 has the addresses own and leads by the router's, via, to
// everywhere. Link is the router's end, with via as its addresses.
func AddHost(h *netlink.Handle, link, path string, own []netip.Prefix, via []netip.Addr, mtu int) error {
	err := Do(path, func() error {
		return SetSysctls(Sysctl{Name: "net/ipv6/conf/default/accept_dad", Value: "0"})
	})
	if err != nil {
		return err
	}
	const eth0 = "eth0"
	if err := AddVeth(h, link, path, eth0, nil, mtu); err != nil {
		return err
	}
	var router []netip.Prefix
	for i, a := range via {
		router = append(router, netip.PrefixFrom(a, own[i].Bits()))
	}
	if err := Configure(h, link, router, nil); err != nil {
		return err
	}
	return Netlink(path, func(h *netlink.Handle) error {
		if err := LinkUp(h, "lo"); err != nil {
			return err
		}
		return Configure(h, eth0, own, via)
	})
}

// AddVeth makes a veth called name in h's namespace whose other end is peer in
// the namespace at path. Without peerMAC the kernel chooses one.
func AddVeth(h *netlink.Handle, name, path, peer string, peerMAC net.HardwareAddr, mtu int) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(fd)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, mtu
	veth := &netlink.Veth{
		LinkAttrs: attrs, PeerName: peer, PeerHardwareAddr: peerMAC,
		PeerNamespace: netlink.NsFd(fd), PeerMTU: uint32(mtu),
	}
	if err := h.LinkAdd(veth); err != nil {
		return fmt.Errorf("add veth %s to %s in %s: %w", name, peer, path, err)
	}
	return nil
}

// Configure gives a link addresses, sets it up and adds default routes.
func Configure(h *netlink.Handle, link string, addrs []netip.Prefix, via []netip.Addr) error {
	l, err := h.LinkByName(link)
	if err != nil {
		return fmt.Errorf("find link %s: %w", link, err)
	}
	for _, a := range addrs {
		if err := AddAddr(h, l, a); err != nil {
			return err
		}
	}
	if err := h.LinkSetUp(l); err != nil {
		return fmt.Errorf("set link %s up: %w", link, err)
	}
	return DefaultRoutes(h, link, via)
}

// DefaultRoutes adds a default route by each of the routers via, behind a link.
func DefaultRoutes(h *netlink.Handle, link string, via []netip.Addr) error {
	l, err := h.LinkByName(link)
	if err != nil {
		return fmt.Errorf("find link %s: %w", link, err)
	}
	for _, gw := range via {
		all := netip.PrefixFrom(rtnl.Unspecified(gw), 0)
		r := &netlink.Route{Dst: IPNet(all), Gw: gw.AsSlice(), LinkIndex: l.Attrs().Index}
		if err := h.RouteReplace(r); err != nil {
			return fmt.Errorf("add default route via %s dev %s: %w", gw, link, err)
		}
	}
	return nil
}

// AddAddr adds an address to a link, without duplicate address detection.
func AddAddr(h *netlink.Handle, l netlink.Link, p netip.Prefix) error {
	a := &netlink.Addr{IPNet: IPNet(p)}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	if err := h.AddrAdd(l, a); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add address %s to %s: %w", p, l.Attrs().Name, err)
	}
	return nil
}

// LinkUp sets a link up.
func LinkUp(h *netlink.Handle, name string) error {
	return Configure(h, name, nil, nil)
}

// IPNet converts at the edge of the netlink library. It keeps the host bits, as addresses on links need them.
func IPNet(p netip.Prefix) *net.IPNet { return rtnl.IPNet(p) }
