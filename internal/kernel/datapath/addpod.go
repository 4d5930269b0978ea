package datapath

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// AddPod makes a pod's link, addresses and routes on both sides. A link of another network, pod.FormerLink, is renamed
// and completed, and stays up.
//
// It is idempotent: it completes what an earlier call left unfinished, and returns the same links. On failure it
// removes a link that this call made, and keeps one that existed before. It adds the route on the node last, so that
// nothing reaches an incomplete pod.
//
// Errors: ErrNotSetUp, ErrNoNetns, ErrNotNetns, ErrInterfaceExists, ErrAddressInUse.
func (n *Node) AddPod(ctx context.Context, pod Pod) (PodLinks, error) {
	if err := n.begin(ctx); err != nil {
		return PodLinks{}, err
	}
	s, err := n.established()
	if err != nil {
		return PodLinks{}, err
	}
	if err := pod.Validate(); err != nil {
		return PodLinks{}, fmt.Errorf("add pod link: %w", err)
	}
	pod = pod.complete(s.mtu)

	before, err := n.podLinks.acquire(ctx, pod.HostIfName)
	if err != nil {
		return PodLinks{}, fmt.Errorf("add %s to pod: %w", pod.IfName, err)
	}
	defer n.podLinks.release(pod.HostIfName)
	links, err := n.addPod(ctx, pod, s.config.Sysctls, func(addr netip.Addr, link int) error { return n.foreign.held(n.kernel, addr, link) })
	if err != nil {
		if before == live {
			n.podLinks.set(pod.HostIfName, unknown, wiring{})
		}
		return PodLinks{}, fmt.Errorf("add %s to pod: %w", pod.IfName, err)
	}
	n.podLinks.set(pod.HostIfName, live, pod.wiring(links.HostIndex, links.PodMAC))
	return links, nil
}

// addPod is AddPod for a complete pod whose link the caller has acquired. Sysctls are below a folder, /proc/sys if
// empty. For a link that it makes it calls held with each address; nil: the pod's addresses are its own already.
func (k *kernel) addPod(ctx context.Context, pod Pod, sysctls string, held func(addr netip.Addr, link int) error) (PodLinks, error) {
	e, err := k.openPod(pod)
	if err != nil {
		return PodLinks{}, err
	}
	defer e.close()
	e.sysctls = sysctls

	created, err := e.ensureLink()
	if created && held != nil {
		for _, addr := range pod.Addrs() {
			if err == nil {
				err = held(addr, e.links.HostIndex)
			}
		}
	}
	// The host end goes up first: the pod's end, going up with a carrier, can
	// then send immediately.
	for _, step := range []func() error{e.raiseHostSide, e.setPodSide, e.joinGroup, e.routeToPod, func() error { return e.awaitQueue(ctx) }} {
		if err == nil {
			err = step()
		}
	}
	if err != nil && created {
		err = errors.Join(err, e.undoLink())
	}
	return e.links, err
}

// podEnds are the two ends of one pod's link during one call: the node's network namespace and the pod's.
type podEnds struct {
	k       *kernel
	pod     Pod
	ns      netns.NsHandle  // the pod's
	inPod   *netlink.Handle // in ns
	sysctls string          // the folder of the kernel's settings; /proc/sys if empty
	links   PodLinks        // links that ensureLink made or found
}

// openPod opens a pod's namespace. Errors: ErrNoNetns, ErrNotNetns.
func (k *kernel) openPod(pod Pod) (*podEnds, error) {
	ns, err := rtnl.OpenPodNetns(pod.Netns, pod.NetnsID, k.nsID)
	if err != nil {
		return nil, err
	}
	inPod, err := rtnl.Handle(ns)
	if err != nil {
		_ = ns.Close()
		return nil, fmt.Errorf("open netlink in %s: %w", pod.Netns, err)
	}
	return &podEnds{k: k, pod: pod, ns: ns, inPod: inPod}, nil
}

func (e *podEnds) close() {
	e.inPod.Close()
	_ = e.ns.Close()
}

// ensureLink makes the veth pair, or finds the one that an earlier AddPod of
// this attachment made. created tells which.
func (e *podEnds) ensureLink() (created bool, err error) {
	if err := e.adoptLink(); err != nil {
		return false, err
	}
	err = e.createLink()
	if !errors.Is(err, unix.EEXIST) {
		return err == nil || e.links.HostIndex != 0, err
	}
	host, err := e.k.main.LinkByName(e.pod.HostIfName)
	if rtnl.IsNoLink(err) {
		return false, fmt.Errorf("%s in %s: %w", e.pod.IfName, e.pod.Netns, ErrInterfaceExists)
	}
	if err != nil {
		return false, fmt.Errorf("look up %s: %w", e.pod.HostIfName, err)
	}
	found, err := e.findLink(host)
	if err == nil && found {
		// The pod's neighbour entry has this MAC address, even if other software changed the link's.
		e.links.HostMAC = e.pod.HostMAC
		_, err = rtnl.Link{Name: e.pod.HostIfName, MAC: e.pod.HostMAC}.Set(e.k.main, host.Attrs())
	}
	if err != nil || found {
		return false, err
	}
	// A link with this attachment's name whose other end is elsewhere is left over from an earlier sandbox.
	if err := e.k.main.LinkDel(host); err != nil && !rtnl.IsNoLink(err) {
		return false, fmt.Errorf("remove stale %s: %w", e.pod.HostIfName, err)
	}
	err = e.createLink()
	if errors.Is(err, unix.EEXIST) {
		err = fmt.Errorf("%s in %s: %w", e.pod.IfName, e.pod.Netns, ErrInterfaceExists)
	}
	return err == nil || e.links.HostIndex != 0, err
}

// createLink makes the veth with its peer inside the pod's namespace. A
// HostIndex in e.links means that the link exists, even with an error.
func (e *podEnds) createLink() error {
	pod := e.pod
	attrs := netlink.NewLinkAttrs()
	attrs.Name = pod.HostIfName
	attrs.HardwareAddr = pod.HostMAC
	attrs.MTU = pod.MTU
	attrs.Group = podGroup
	// The kernel's default is a queue for each processor of the node, each with objects in sysfs. Pod links queue nothing,
	// so one is enough, and makes ADD and DEL independent of the number of processors.
	attrs.NumTxQueues, attrs.NumRxQueues = 1, 1
	veth := netlink.NewVeth(attrs)
	veth.PeerName = pod.IfName
	veth.PeerHardwareAddr = pod.PodMAC
	veth.PeerMTU = uint32(pod.MTU)
	veth.PeerNamespace = netlink.NsFd(e.ns)
	if err := e.k.main.LinkAdd(veth); err != nil {
		return fmt.Errorf("make link %s with peer %s in %s: %w", pod.HostIfName, pod.IfName, pod.Netns, err)
	}
	links := PodLinks{HostMAC: pod.HostMAC, PodMAC: pod.PodMAC, HostIndex: veth.Index, MTU: pod.MTU}
	if links.HostIndex == 0 { // the library discards the error of its look-up
		host, err := e.k.main.LinkByName(pod.HostIfName)
		if err != nil {
			return fmt.Errorf("look up %s just made: %w", pod.HostIfName, err)
		}
		links.HostIndex = host.Attrs().Index
	}
	e.links = links
	peer, err := e.inPod.LinkByName(pod.IfName)
	if err != nil {
		return fmt.Errorf("look up %s in %s: %w", pod.IfName, pod.Netns, err)
	}
	e.links.PodIndex = peer.Attrs().Index
	return nil
}

// findLink reports whether the peer of host is the pod's interface, and describes both in e.links.
func (e *podEnds) findLink(host netlink.Link) (found bool, err error) {
	peer, err := e.inPod.LinkByName(e.pod.IfName)
	if rtnl.IsNoLink(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look up %s in %s: %w", e.pod.IfName, e.pod.Netns, err)
	}
	h, p := host.Attrs(), peer.Attrs()
	if host.Type() != "veth" || peer.Type() != "veth" || h.ParentIndex != p.Index || p.ParentIndex != h.Index {
		return false, nil
	}
	e.links = PodLinks{
		HostMAC: h.HardwareAddr, PodMAC: p.HardwareAddr,
		HostIndex: h.Index, PodIndex: p.Index, MTU: p.MTU,
	}
	return true, nil
}

// undoLink removes a link that the failed call made.
func (e *podEnds) undoLink() error {
	err := e.k.main.LinkDel(rtnl.LinkRef(e.links.HostIndex))
	if err != nil && !rtnl.IsNoLink(err) {
		return fmt.Errorf("undo: remove %s: %w", e.pod.HostIfName, err)
	}
	return nil
}

func (e *podEnds) raiseHostSide() error {
	if err := e.k.main.LinkSetUp(rtnl.LinkRef(e.links.HostIndex)); err != nil {
		return fmt.Errorf("set %s up: %w", e.pod.HostIfName, err)
	}
	return nil
}

// routeToPod adds the pod's neighbour entries and routes to the host end.
func (e *podEnds) routeToPod() error {
	kind := neighbourKind(e.k.main)
	for _, addr := range e.pod.Addrs() {
		n := *rtnl.PermanentNeighbour(e.links.HostIndex, addr, e.links.PodMAC)
		if err := kind.Add(n); err != nil {
			return fmt.Errorf("add %s to %s: %w", kind.Name(n), e.pod.HostIfName, err)
		}
		if err := e.addPodRoute(addr); err != nil {
			return err
		}
	}
	return nil
}

// neighbourKind is the kind of permanent neighbour entries.
func neighbourKind(h *netlink.Handle) rtnl.Kind[netlink.Neigh, rtnl.Neighbour] {
	return rtnl.Kind[netlink.Neigh, rtnl.Neighbour]{
		Key:  rtnl.NeighbourOf,
		Name: func(n netlink.Neigh) string { return "neighbour " + rtnl.AddrOf(n.IP).String() },
		Add:  func(n netlink.Neigh) error { return h.NeighSet(&n) },
	}
}

// awaitQueue waits until the host end can send. Its carrier comes from the pod's end, and it drops all packets until a
// kernel worker has handled that: the reply to the pod's first packet would be lost, and its first connection would
// take a second. Since Linux 6.8 a look-up of the link waits for the worker. Older kernels need about a millisecond;
// awaitQueue gives up after ten without an error.
func (e *podEnds) awaitQueue(ctx context.Context) error {
	for range 10 {
		link, err := e.k.main.LinkByIndex(e.links.HostIndex)
		if err != nil {
			return fmt.Errorf("look up %s: %w", e.pod.HostIfName, err)
		}
		if link.Attrs().OperState == netlink.OperUp {
			return nil
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (e *podEnds) addPodRoute(addr netip.Addr) error {
	nl, index, hostLink := e.k.main, e.links.HostIndex, e.pod.HostIfName
	err := nl.RouteAdd(podRoute(index, addr))
	if !errors.Is(err, unix.EEXIST) {
		if err != nil {
			return fmt.Errorf("add route %s dev %s to table %d: %w", addr, hostLink, PodTable, err)
		}
		return nil
	}
	other, err := e.k.podRouteLink(addr)
	if err != nil || other == index {
		return err
	}
	name := fmt.Sprintf("link %d", other)
	if link, err := nl.LinkByIndex(other); err == nil {
		name = link.Attrs().Name
	}
	if !strings.HasPrefix(name, LinkPrefix) { // the route leads to no pod: other software replaced Berth's
		if err := nl.RouteReplace(podRoute(index, addr)); err != nil {
			return fmt.Errorf("replace route %s dev %s of table %d: %w", addr, name, PodTable, err)
		}
		return nil
	}
	return fmt.Errorf("route %s to %s: %w: %s", addr, hostLink, ErrAddressInUse, name)
}

func podRoute(index int, addr netip.Addr) *netlink.Route {
	return &netlink.Route{
		LinkIndex: index,
		Dst:       rtnl.IPNet(rtnl.HostPrefix(addr)),
		Table:     PodTable,
		Scope:     rtnl.ScopeFor(addr, netlink.SCOPE_LINK),
		Protocol:  Protocol,
	}
}

// setPodSide sets the pod's interface up: address, on-link gateway with a permanent neighbour entry, and default
// route. It keeps existing ones.
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

// setPodSideRoute adds a route in the pod. Routes of an interface that existed before, or that has the pod's default
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

// podAddress is a host address. IPv6 skips duplicate address detection, which takes 1 to 2 s; the address is unique
// in the VPC.
func podAddress(addr netip.Addr) *netlink.Addr {
	a := &netlink.Addr{IPNet: rtnl.IPNet(rtnl.HostPrefix(addr))}
	if rtnl.IsIPv6(addr) {
		a.Flags = unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE
	}
	return a
}

// podSideRoutes are the pod's routes in one family. fe80::1 needs no route: the kernel's fe80::/64 or the flag makes
// it on-link.
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

// PodGateway is the gateway of a pod with an address. No machine has this address: a permanent neighbour entry leads
// to the host end of the pod's link.
func PodGateway(addr netip.Addr) netip.Addr {
	if rtnl.IsIPv6(addr) {
		return gateway6
	}
	return gateway4
}
