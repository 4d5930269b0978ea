package datapath

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// wirePodSide sets the pod's interface up: address, gateway on link with a
// permanent neighbour, default route. Everything is put in place again without
// harm when it is there already.
func wirePodSide(pod Pod, links PodLinks, ns netns.NsHandle, inPod *netlink.Handle, sysctls string) error {
	if err := inPod.LinkSetUp(rtnl.LinkRef(links.PodIndex)); err != nil {
		return fmt.Errorf("set %s up in %s: %w", pod.IfName, pod.Netns, err)
	}
	for _, addr := range pod.Addrs() {
		if err := addPodAddress(pod, links.PodIndex, addr, ns, inPod, sysctls); err != nil {
			return err
		}
		gw := PodGateway(addr)
		if err := inPod.NeighSet(neighbour(links.PodIndex, gw, links.HostMAC)); err != nil {
			return fmt.Errorf("add neighbour %s in %s: %w", gw, pod.Netns, err)
		}
		for _, r := range podSideRoutes(links.PodIndex, addr) {
			if err := setPodRoute(pod, addr, r, inPod); err != nil {
				return fmt.Errorf("add route %s in %s: %w", r, pod.Netns, err)
			}
		}
	}
	return nil
}

// setPodRoute puts a route of the way out of the pod in place, behind those of an interface
// that was there before, or that is to have the default route.
func setPodRoute(pod Pod, addr netip.Addr, r *netlink.Route, inPod *netlink.Handle) error {
	leads := rtnl.RouteDst(*r).Bits() == 0
	var first bool
	var err error
	if leads && pod.yields(addr) {
		r.Priority = rtnl.LaterMetric + r.LinkIndex
		err = inPod.RouteReplace(r)
	} else {
		first, err = rtnl.SetRoute(r, inPod)
	}
	if err == nil && leads && (!first || pod.Several) {
		err = rtnl.RouteBySource(r, addr, inPod)
	}
	return err
}

func addPodAddress(pod Pod, index int, addr netip.Addr, ns netns.NsHandle, inPod *netlink.Handle, sysctls string) error {
	if err := rtnl.AddAddress(podAddress(addr), index, pod.IfName, ns, inPod, sysctls); err != nil {
		return fmt.Errorf("add address %s to %s in %s: %w", addr, pod.IfName, pod.Netns, err)
	}
	return nil
}

// podAddress is a host address. IPv6 skips duplicate address detection, which
// would keep the pod waiting 1 to 2 s for an address that the VPC made unique.
func podAddress(addr netip.Addr) *netlink.Addr {
	a := &netlink.Addr{IPNet: rtnl.IPNet(rtnl.HostPrefix(addr))}
	if rtnl.IsIPv6(addr) {
		a.Flags = unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE
	}
	return a
}

// podSideRoutes are the way out of the pod for one family. fe80::1 is on link
// by the kernel's own fe80::/64 or by the flag, so it needs no route.
func podSideRoutes(index int, addr netip.Addr) []*netlink.Route {
	gw := PodGateway(addr)
	def := &netlink.Route{
		LinkIndex: index,
		Dst:       rtnl.IPNet(netip.PrefixFrom(rtnl.Unspecified(addr), 0)),
		Gw:        gw.AsSlice(),
		Flags:     int(netlink.FLAG_ONLINK),
		Protocol:  Protocol,
	}
	if rtnl.IsIPv6(addr) {
		return []*netlink.Route{def}
	}
	onLink := &netlink.Route{
		LinkIndex: index,
		Dst:       rtnl.IPNet(rtnl.HostPrefix(gw)),
		Scope:     netlink.SCOPE_LINK,
		Protocol:  Protocol,
	}
	return []*netlink.Route{onLink, def}
}

// PodGateway is the next hop that a pod with an address has for elsewhere. It exists nowhere: a
// permanent neighbour leads to the pod's link on the node.
func PodGateway(addr netip.Addr) netip.Addr {
	if rtnl.IsIPv6(addr) {
		return gateway6
	}
	return gateway4
}

func neighbour(index int, addr netip.Addr, mac net.HardwareAddr) *netlink.Neigh {
	return &netlink.Neigh{
		LinkIndex:    index,
		Family:       rtnl.FamilyOf(addr),
		State:        netlink.NUD_PERMANENT,
		IP:           addr.AsSlice(),
		HardwareAddr: mac,
	}
}
