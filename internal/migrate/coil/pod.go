package coil

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/foreign"
)

// form is how Coil's pods reach the node. It differs between versions, and shows in the IPv4 and IPv6 addresses of their
// links on the node:
//
//   - since version 2.0.13 the addresses of the Node, as hosts
//   - before, 169.254.1.1/30; the pod is behind 169.254.1.2, and has its addresses on its loopback link
//   - in version 1, 169.254.1.1/32
type form struct {
	node    []netip.Addr // of the Node
	behind  bool         // pods are behind peer
	version int          // 1 or 2
}

// gateway is the address of pods' links on the node before version 2.0.13.
var (
	gateway = netip.MustParseAddr("169.254.1.1")
	peer    = netip.MustParseAddr("169.254.1.2")
)

func (f form) known() bool { return f.version != 0 }

// gatewayOf returns the IPv4 gateway of pods.
func (f form) gatewayOf() netip.Addr {
	for _, a := range f.node {
		if a.Is4() && !f.behind && f.version == 2 {
			return a
		}
	}
	return gateway
}

// gatewaysOf returns the gateways of a pod, one of each family.
func (f form) gatewaysOf(rec attachment.Record) (list []netip.Addr) {
	for _, addr := range rec.Lease.Addrs() {
		if addr.Is4() {
			list = append(list, f.gatewayOf())
		} else {
			list = append(list, rtnl.LinkLocal(net.HardwareAddr(rec.HostMAC)))
		}
	}
	return list
}

// route returns Coil's route to a pod.
func (f form) route(addr netip.Addr) attachment.AdoptedRoute {
	r := attachment.AdoptedRoute{Destination: rtnl.HostPrefix(addr), Table: foreign.CoilPodTable, Protocol: foreign.CoilProtocol}
	switch {
	case addr.Is6():
		r.Metric = 1024 // the kernel's default
	case f.behind:
		r.Gateway = peer
	}
	return r
}

// form finds the form by the links of Coil's pods: adopted ones, and those that were given back.
func (n *Node) form(s state) (f form, err error) {
	if n.cfg.Known != nil {
		return form{version: 1}, nil
	}
	for _, p := range s.pods {
		link, err := n.links.host.LinkByIndex(p.Link.Index)
		if p.chained() || p.Container == "" || rtnl.IsNoLink(err) { // without an alias it may be another network's
			continue
		}
		if err != nil {
			return f, fmt.Errorf("look up %s: %w", p.Link.Name, err)
		}
		addrs, err := n.links.addressesOf(link)
		if err != nil {
			return f, err
		}
		f.add(addrs)
	}
	return f, nil
}

// add adds what the addresses of a link tell.
func (f *form) add(addrs []netlink.Addr) {
	for _, a := range addrs {
		addr := rtnl.AddrOf(a.IP)
		bits, _ := a.Mask.Size()
		f.version = 2
		switch {
		case addr == gateway:
			f.behind = bits < 32
		case !slices.Contains(f.node, addr):
			f.node = append(f.node, addr)
		}
	}
}

// hostLinks are the links of the node's network namespace.
type hostLinks struct {
	ns   netns.NsHandle
	host *netlink.Handle
}

// addressesOf lists the addresses of a link, but for those that the kernel gives it.
func (l *hostLinks) addressesOf(link netlink.Link) ([]netlink.Addr, error) {
	addrs, err := rtnl.Whole(func() ([]netlink.Addr, error) { return l.host.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list the addresses of %s: %w", link.Attrs().Name, err)
	}
	return slices.DeleteFunc(addrs, func(a netlink.Addr) bool { return a.IP.To4() == nil && a.IP.IsLinkLocalUnicast() }), nil
}

// gatewaysOf returns the addresses of a pod's link on the node, which are gateways of Coil's pods.
func (l *hostLinks) gatewaysOf(rec attachment.Record) (list []netip.Addr, err error) {
	link, err := l.host.LinkByName(rec.HostLink)
	if rtnl.IsNoLink(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", rec.HostLink, err)
	}
	addrs, err := l.addressesOf(link)
	for _, a := range addrs {
		list = append(list, rtnl.AddrOf(a.IP))
	}
	return list, err
}

// removeAddresses removes the addresses of a pod's link on the node.
func (l *hostLinks) removeAddresses(rec attachment.Record) (changed bool, err error) {
	link, err := l.host.LinkByName(rec.HostLink)
	if rtnl.IsNoLink(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	addrs, err := l.addressesOf(link)
	if err != nil {
		return false, err
	}
	var last []netlink.Addr
	for _, a := range addrs {
		if a.IP.To4() != nil && rec.Lease.IPv4.IsValid() {
			last = append(last, a)
			continue
		}
		if err := l.host.AddrDel(link, &a); err != nil && !rtnl.IsGone(err) {
			return changed, fmt.Errorf("remove %s from %s: %w", a.IPNet, rec.HostLink, err)
		}
		changed = true
	}
	held, err := l.hasNexthop(link.Attrs().Index)
	if err != nil || len(last) == 0 && !held {
		return changed, err
	}
	return true, l.withoutLast(link, rec.Lease.IPv4, datapath.PodTable, last)
}

// addAddresses gives the link of a pod the addresses that its gateway has with Coil.
func (l *hostLinks) addAddresses(rec attachment.Record, f form) error {
	link, err := l.host.LinkByName(rec.HostLink)
	if rtnl.IsNoLink(err) {
		return nil
	}
	if err != nil {
		return err
	}
	var addrs []*netlink.Addr
	switch {
	case f.behind:
		addrs = append(addrs, &netlink.Addr{IPNet: rtnl.IPNet(netip.PrefixFrom(gateway, 30)), Scope: unix.RT_SCOPE_LINK})
	case f.version == 1 && rec.Lease.IPv4.IsValid():
		addrs = append(addrs, &netlink.Addr{IPNet: rtnl.IPNet(rtnl.HostPrefix(gateway)), Scope: unix.RT_SCOPE_LINK})
	}
	for _, a := range f.node {
		if a.Is4() && rec.Lease.IPv4.IsValid() || a.Is6() && rec.Lease.IPv6.IsValid() {
			addr := &netlink.Addr{IPNet: rtnl.IPNet(rtnl.HostPrefix(a))}
			if a.Is6() {
				addr.Flags = unix.IFA_F_NODAD
			}
			addrs = append(addrs, addr)
		}
	}
	for _, a := range addrs {
		if err := l.host.AddrReplace(link, a); err != nil {
			return fmt.Errorf("add %s to %s: %w", a.IPNet, rec.HostLink, err)
		}
	}
	return nil
}

// inside is the pod's side of a link.
type inside struct {
	rec     attachment.Record
	handle  *netlink.Handle
	link    netlink.Link
	hostMAC net.HardwareAddr
}

// insideOf calls do in the network namespace of a pod. It does nothing if the pod is gone.
func insideOf(rec attachment.Record, do func(*inside) (bool, error)) (bool, error) {
	ns, err := rtnl.OpenPodNetns(rec.Netns.Path, rtnl.NetnsID{Dev: rec.Netns.Dev, Inode: rec.Netns.Inode}, rtnl.NetnsID{})
	if errors.Is(err, rtnl.ErrNoNetns) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func(ns netns.NsHandle) { _ = ns.Close() }(ns)
	h, err := rtnl.Handle(ns)
	if err != nil {
		return false, fmt.Errorf("open netlink in %s: %w", rec.Netns.Path, err)
	}
	defer h.Close()
	link, err := h.LinkByName(rec.Key.IfName)
	if rtnl.IsNoLink(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look up %s in %s: %w", rec.Key.IfName, rec.Netns.Path, err)
	}
	did, err := do(&inside{rec, h, link, net.HardwareAddr(rec.HostMAC)})
	if err != nil {
		err = fmt.Errorf("in %s: %w", rec.Netns.Path, err)
	}
	return did, err
}

// tidy removes what Coil left in a pod whose gateway is Berth's: the route to the former gateways, and the addresses of
// a pod behind peer. The pod's own addresses are on its interface.
func (in *inside) tidy(gateways []netip.Addr) (changed bool, err error) {
	lo, err := in.handle.LinkByName("lo")
	if err != nil {
		return false, fmt.Errorf("look up lo: %w", err)
	}
	for _, link := range []netlink.Link{lo, in.link} {
		addrs, err := rtnl.Whole(func() ([]netlink.Addr, error) { return in.handle.AddrList(link, netlink.FAMILY_ALL) })
		if err != nil {
			return changed, fmt.Errorf("list addresses: %w", err)
		}
		for _, a := range addrs {
			addr := rtnl.AddrOf(a.IP)
			if link == lo && slices.Contains(in.rec.Lease.Addrs(), addr) || link == in.link && addr == peer {
				if err := in.handle.AddrDel(link, &a); err != nil && !rtnl.IsGone(err) {
					return changed, fmt.Errorf("remove %s from %s: %w", addr, link.Attrs().Name, err)
				}
				changed = true
			}
		}
	}
	routes, err := rtnl.Whole(func() ([]netlink.Route, error) { return in.handle.RouteList(in.link, netlink.FAMILY_ALL) })
	if err != nil {
		return changed, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		dst := rtnl.RouteDst(r)
		if r.Protocol != unix.RTPROT_BOOT || !dst.IsSingleIP() || !slices.Contains(gateways, dst.Addr()) {
			continue
		}
		if err := in.handle.RouteDel(&r); err != nil && !rtnl.IsGone(err) {
			return changed, fmt.Errorf("remove the route to %s: %w", dst, err)
		}
		changed = true
	}
	return changed, nil
}

// prepare adds the addresses by which the node reaches a pod with Coil.
func (in *inside) prepare(f form) error {
	if !f.behind {
		return nil
	}
	if err := in.toLoopback(); err != nil {
		return err
	}
	if !in.rec.Lease.IPv4.IsValid() {
		return nil
	}
	a := &netlink.Addr{IPNet: rtnl.IPNet(netip.PrefixFrom(peer, 30)), Scope: unix.RT_SCOPE_LINK}
	if err := in.handle.AddrReplace(in.link, a); err != nil {
		return fmt.Errorf("add %s: %w", peer, err)
	}
	return nil
}

// restore gives a pod the gateways that it has with Coil. They need no ARP request at first, even if one has the address of
// Berth's.
func (in *inside) restore(f form) error {
	index := in.link.Attrs().Index
	for _, addr := range in.rec.Lease.Addrs() {
		gw := rtnl.LinkLocal(in.hostMAC)
		if addr.Is4() {
			gw = f.gatewayOf()
		}
		known := rtnl.PermanentNeighbour(index, gw, in.hostMAC)
		known.State = unix.NUD_STALE
		if err := in.handle.NeighSet(known); err != nil {
			return fmt.Errorf("set the neighbour entry of %s: %w", gw, err)
		}
		if addr.Is4() && !f.behind {
			if err := in.handle.RouteReplace(&netlink.Route{
				LinkIndex: index, Dst: rtnl.IPNet(rtnl.HostPrefix(gw)), Scope: netlink.SCOPE_LINK, Protocol: unix.RTPROT_BOOT,
			}); err != nil {
				return fmt.Errorf("set the route to %s: %w", gw, err)
			}
		}
		def := &netlink.Route{
			LinkIndex: index, Dst: rtnl.IPNet(netip.PrefixFrom(rtnl.Unspecified(addr), 0)), Gw: gw.AsSlice(), Protocol: unix.RTPROT_BOOT,
		}
		if err := in.handle.RouteReplace(def); err != nil {
			return fmt.Errorf("set the default route by %s: %w", gw, err)
		}
		if err := in.withdraw(addr, gw); err != nil {
			return err
		}
		if !f.behind {
			continue
		}
		if err := in.handle.AddrDel(in.link, &netlink.Addr{IPNet: rtnl.IPNet(rtnl.HostPrefix(addr))}); err != nil && !rtnl.IsGone(err) {
			return fmt.Errorf("remove %s from %s: %w", addr, in.rec.Key.IfName, err)
		}
	}
	return nil
}

// toLoopback adds the pod's addresses to its loopback link.
func (in *inside) toLoopback() error {
	lo, err := in.handle.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("look up lo: %w", err)
	}
	for _, addr := range in.rec.Lease.Addrs() {
		a := &netlink.Addr{IPNet: rtnl.IPNet(rtnl.HostPrefix(addr))}
		if addr.Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		if err := in.handle.AddrReplace(lo, a); err != nil {
			return fmt.Errorf("add %s to lo: %w", addr, err)
		}
	}
	return nil
}

// withdraw removes Berth's gateway of a family, which may have the address of Coil's.
func (in *inside) withdraw(addr, coils netip.Addr) error {
	berths := datapath.PodGateway(addr)
	if addr.Is4() {
		err := in.handle.RouteDel(&netlink.Route{
			LinkIndex: in.link.Attrs().Index, Dst: rtnl.IPNet(rtnl.HostPrefix(berths)), Scope: netlink.SCOPE_LINK, Protocol: datapath.Protocol,
		})
		if err != nil && !rtnl.IsGone(err) {
			return fmt.Errorf("remove the route to %s: %w", berths, err)
		}
	}
	if berths == coils {
		return nil
	}
	neighbour := rtnl.PermanentNeighbour(in.link.Attrs().Index, berths, in.hostMAC)
	if err := in.handle.NeighDel(neighbour); err != nil && !rtnl.IsGone(err) {
		return fmt.Errorf("remove the neighbour entry of %s: %w", berths, err)
	}
	return nil
}
