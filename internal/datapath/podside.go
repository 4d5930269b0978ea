package datapath

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// wirePodSide sets the pod's interface up: address, gateway on link with a
// permanent neighbour, default route. Everything is put in place again without
// harm when it is there already.
func wirePodSide(pod Pod, links PodLinks, ns netns.NsHandle, inPod *netlink.Handle, sysctls string) error {
	if err := inPod.LinkSetUp(linkRef(links.PodIndex)); err != nil {
		return fmt.Errorf("set %s up in %s: %w", pod.IfName, pod.Netns, err)
	}
	for _, addr := range pod.Addrs() {
		if err := addPodAddress(pod, links.PodIndex, addr, ns, inPod, sysctls); err != nil {
			return err
		}
		gw := gatewayFor(addr)
		if err := inPod.NeighSet(neighbour(links.PodIndex, gw, links.HostMAC)); err != nil {
			return fmt.Errorf("add neighbour %s in %s: %w", gw, pod.Netns, err)
		}
		for _, r := range podSideRoutes(links.PodIndex, addr) {
			first, err := setPodSideRoute(r, inPod)
			if err == nil && !first && routeDst(*r).Bits() == 0 {
				err = routeBySource(r, addr, inPod)
			}
			if err != nil {
				return fmt.Errorf("add route %s in %s: %w", r, pod.Netns, err)
			}
		}
	}
	return nil
}

// laterMetric begins the metrics of the routes of a pod's further interfaces,
// to which the link's index is added: each interface keeps its own routes and
// the first one's are preferred. The same number is that of the routing table by
// which what has the interface's address goes out, and laterMetric the priority of
// the rules that lead there.
const laterMetric = 2048

// setPodSideRoute puts a route in place, beside one that another interface of
// the same pod may have to the same destination. first tells that there is none.
func setPodSideRoute(r *netlink.Route, inPod *netlink.Handle) (first bool, err error) {
	err = inPod.RouteAdd(r)
	if !errors.Is(err, unix.EEXIST) {
		return true, err
	}
	routes, err := whole(func() ([]netlink.Route, error) { return inPod.RouteList(nil, familyOf(routeDst(*r).Addr())) })
	if err != nil {
		return false, err
	}
	first = true
	for _, other := range routes {
		if routeDst(other) == routeDst(*r) && other.LinkIndex != r.LinkIndex && other.Priority < laterMetric {
			first = false
			r.Priority = laterMetric + r.LinkIndex
		}
	}
	return first, inPod.RouteReplace(r)
}

// routeBySource makes packets from a further interface's address leave by it, of
// which def is the default route: by another interface the node would drop them.
// When the interface goes, its table goes with it and the rule leads nowhere.
func routeBySource(def *netlink.Route, addr netip.Addr, inPod *netlink.Handle) error {
	table := laterMetric + def.LinkIndex
	own := *def
	own.Table, own.Priority = table, 0
	if err := inPod.RouteReplace(&own); err != nil {
		return err
	}
	rule := netlink.NewRule()
	rule.Family, rule.Priority, rule.Table, rule.Src = familyOf(addr), laterMetric, table, ipNet(hostPrefix(addr))
	if err := inPod.RuleAdd(rule); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add the rule that packets from %s look up table %d: %w", addr, table, err)
	}
	return nil
}

func addPodAddress(pod Pod, index int, addr netip.Addr, ns netns.NsHandle, inPod *netlink.Handle, sysctls string) error {
	add := func() error { return inPod.AddrReplace(linkRef(index), podAddress(addr)) }
	err := add()
	// Some runtimes make sandboxes with IPv6 switched off.
	if errors.Is(err, unix.EACCES) && isIPv6(addr) {
		if err = inNetns(ns, func() error {
			file := filepath.Join(cmp.Or(sysctls, procSys), "net/ipv6/conf", pod.IfName, "disable_ipv6")
			return os.WriteFile(file, []byte("0"), 0)
		}); err == nil {
			err = add()
		}
	}
	if err != nil {
		return fmt.Errorf("add address %s to %s in %s: %w", addr, pod.IfName, pod.Netns, err)
	}
	return nil
}

// podAddress is a host address. IPv6 skips duplicate address detection, which
// would keep the pod waiting 1 to 2 s for an address that the VPC made unique.
func podAddress(addr netip.Addr) *netlink.Addr {
	a := &netlink.Addr{IPNet: ipNet(hostPrefix(addr))}
	if isIPv6(addr) {
		a.Flags = unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE
	}
	return a
}

// podSideRoutes are the way out of the pod for one family. fe80::1 is on link
// by the kernel's own fe80::/64 or by the flag, so it needs no route.
func podSideRoutes(index int, addr netip.Addr) []*netlink.Route {
	gw := gatewayFor(addr)
	def := &netlink.Route{
		LinkIndex: index,
		Dst:       ipNet(netip.PrefixFrom(unspecified(addr), 0)),
		Gw:        gw.AsSlice(),
		Flags:     int(netlink.FLAG_ONLINK),
		Protocol:  Protocol,
	}
	if isIPv6(addr) {
		return []*netlink.Route{def}
	}
	onLink := &netlink.Route{
		LinkIndex: index,
		Dst:       ipNet(hostPrefix(gw)),
		Scope:     netlink.SCOPE_LINK,
		Protocol:  Protocol,
	}
	return []*netlink.Route{onLink, def}
}

func gatewayFor(addr netip.Addr) netip.Addr {
	if isIPv6(addr) {
		return gateway6
	}
	return gateway4
}

func unspecified(addr netip.Addr) netip.Addr {
	if isIPv6(addr) {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

func neighbour(index int, addr netip.Addr, mac net.HardwareAddr) *netlink.Neigh {
	return &netlink.Neigh{
		LinkIndex:    index,
		Family:       familyOf(addr),
		State:        netlink.NUD_PERMANENT,
		IP:           addr.AsSlice(),
		HardwareAddr: mac,
	}
}
