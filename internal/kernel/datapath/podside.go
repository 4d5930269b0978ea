package datapath

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// setPodSide sets the pod's interface up: address, gateway on link with a
// permanent neighbour, default route. What is there already stays.
func (e *podEnds) setPodSide() error {
	pod, index := e.pod, e.links.PodIndex
	if err := e.inPod.LinkSetUp(rtnl.LinkRef(index)); err != nil {
		return fmt.Errorf("set %s up in %s: %w", pod.IfName, pod.Netns, err)
	}
	for _, addr := range pod.Addrs() {
		if err := rtnl.AddAddress(podAddress(addr), index, pod.IfName, e.ns, e.inPod, e.sysctls); err != nil {
			return fmt.Errorf("add address %s to %s in %s: %w", addr, pod.IfName, pod.Netns, err)
		}
		kind, gateway := neighbourKind(e.inPod), *rtnl.PermanentNeighbour(index, PodGateway(addr), e.links.HostMAC)
		if err := kind.Add(gateway); err != nil {
			return fmt.Errorf("add %s in %s: %w", kind.Name(gateway), pod.Netns, err)
		}
		for _, r := range podSideRoutes(index, addr) {
			if err := e.setPodSideRoute(addr, r); err != nil {
				return fmt.Errorf("add route %s in %s: %w", r, pod.Netns, err)
			}
		}
	}
	return nil
}

// setPodSideRoute adds a route in the pod. Those of an interface that was there before, or that is to have the default
// route, are preferred.
func (e *podEnds) setPodSideRoute(addr netip.Addr, r netlink.Route) error {
	leads := rtnl.RouteDst(r).Bits() == 0
	var first bool
	var err error
	if leads && e.pod.yields(addr) {
		r.Priority = rtnl.LaterMetric + r.LinkIndex
		err = e.inPod.RouteReplace(&r)
	} else {
		first, err = rtnl.SetRoute(&r, e.inPod)
	}
	if err == nil && leads && (!first || e.pod.Several) {
		err = rtnl.RouteBySource(&r, addr, e.inPod)
	}
	return err
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
func podSideRoutes(index int, addr netip.Addr) []netlink.Route {
	gw := PodGateway(addr)
	def := netlink.Route{
		LinkIndex: index, Family: rtnl.FamilyOf(addr),
		Dst:      rtnl.IPNet(netip.PrefixFrom(rtnl.Unspecified(addr), 0)),
		Gw:       gw.AsSlice(),
		Flags:    int(netlink.FLAG_ONLINK),
		Protocol: Protocol,
	}
	if rtnl.IsIPv6(addr) {
		return []netlink.Route{def}
	}
	onLink := netlink.Route{
		LinkIndex: index, Family: rtnl.FamilyOf(addr),
		Dst:      rtnl.IPNet(rtnl.HostPrefix(gw)),
		Scope:    netlink.SCOPE_LINK,
		Protocol: Protocol,
	}
	return []netlink.Route{onLink, def}
}

// PodGateway is the next hop that a pod with an address has for elsewhere. It exists nowhere: a
// permanent neighbour leads to the pod's link on the node.
func PodGateway(addr netip.Addr) netip.Addr {
	if rtnl.IsIPv6(addr) {
		return gateway6
	}
	return gateway4
}
