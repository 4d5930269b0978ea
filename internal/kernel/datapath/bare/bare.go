// Package bare makes a pod link with the necessary netlink calls only, without checks, undo or idempotency.
// Benchmarks compare datapath.Node.AddPod with it.
package bare

import (
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Link is what AddPod is given, in the netlink library's terms.
type Link struct {
	Netns           string // path
	IfName, HostIf  string
	HostMAC, PodMAC net.HardwareAddr
	MTU             int
	Addrs           []netip.Addr
	Table           int // of the route on the node
}

// Add makes the link from the node's namespace, to which host is bound.
func Add(host *netlink.Handle, l Link) error {
	ns, err := netns.GetFromPath(l.Netns)
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }()
	pod, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer pod.Close()

	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr, attrs.MTU = l.HostIf, l.HostMAC, l.MTU
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerHardwareAddr, veth.PeerMTU = l.IfName, l.PodMAC, uint32(l.MTU)
	veth.PeerNamespace = netlink.NsFd(ns)
	if err := host.LinkAdd(veth); err != nil { // and looks its index up
		return err
	}
	peer, err := pod.LinkByName(l.IfName)
	if err != nil {
		return err
	}
	if err := pod.LinkSetUp(peer); err != nil {
		return err
	}
	for _, a := range l.Addrs {
		if err := podSide(pod, peer, a, l); err != nil {
			return err
		}
	}
	if err := host.LinkSetUp(veth); err != nil {
		return err
	}
	for _, a := range l.Addrs {
		if err := host.NeighSet(rtnl.PermanentNeighbour(veth.Index, a, l.PodMAC)); err != nil {
			return err
		}
		if err := host.RouteAdd(&netlink.Route{LinkIndex: veth.Index, Dst: single(a), Table: l.Table, Scope: rtnl.ScopeFor(a, netlink.SCOPE_LINK)}); err != nil {
			return err
		}
	}
	return nil
}

func podSide(pod *netlink.Handle, peer netlink.Link, a netip.Addr, l Link) error {
	addr := &netlink.Addr{IPNet: single(a)}
	gw := netip.MustParseAddr("169.254.1.1")
	if a.Is6() {
		addr.Flags = unix.IFA_F_NODAD
		gw = netip.MustParseAddr("fe80::1")
	}
	index := peer.Attrs().Index
	if err := pod.AddrAdd(peer, addr); err != nil {
		return err
	}
	if a.Is4() {
		if err := pod.RouteAdd(&netlink.Route{LinkIndex: index, Dst: single(gw), Scope: netlink.SCOPE_LINK}); err != nil {
			return err
		}
	}
	if err := pod.RouteAdd(&netlink.Route{LinkIndex: index, Dst: rtnl.IPNet(netip.PrefixFrom(rtnl.Unspecified(a), 0)), Gw: gw.AsSlice(), Flags: int(netlink.FLAG_ONLINK)}); err != nil {
		return err
	}
	return pod.NeighSet(rtnl.PermanentNeighbour(index, gw, l.HostMAC))
}

func single(a netip.Addr) *net.IPNet { return rtnl.IPNet(rtnl.HostPrefix(a)) }
