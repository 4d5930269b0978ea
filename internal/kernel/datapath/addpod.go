package datapath

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// AddPod makes a pod's link, addresses and routes on both sides.
//
// It is idempotent: for a pod that has all of it, it changes nothing and gives
// the same answer; for one left half done, it finishes. On failure it removes
// a link that it made itself, and leaves one that was there before. The route
// on the node comes last, so nothing reaches a pod that is not complete.
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
	links, err := n.addPod(ctx, pod, s.config.Sysctls)
	if err != nil {
		if before == live {
			n.podLinks.set(pod.HostIfName, unknown, wiring{})
		}
		return PodLinks{}, fmt.Errorf("add %s to pod: %w", pod.IfName, err)
	}
	n.podLinks.set(pod.HostIfName, live, pod.wiring(links.HostIndex, links.PodMAC))
	return links, nil
}

// addPod is AddPod for a complete pod, with the turn of its link. Sysctls are below
// a folder, /proc/sys if empty.
func (k *kernel) addPod(ctx context.Context, pod Pod, sysctls string) (PodLinks, error) {
	ns, err := k.openPodNetns(pod)
	if err != nil {
		return PodLinks{}, err
	}
	defer func() { _ = ns.Close() }()
	inPod, err := rtnl.Handle(ns)
	if err != nil {
		return PodLinks{}, fmt.Errorf("open netlink in %s: %w", pod.Netns, err)
	}
	defer inPod.Close()

	links, created, err := k.ensureLink(pod, ns, inPod)
	// The host end goes up first: the pod's end, going up with a carrier, can
	// then send at once.
	for _, step := range []func() error{
		func() error { return k.raiseHostSide(pod, links) },
		func() error { return wirePodSide(pod, links, ns, inPod, sysctls) },
		func() error { return k.routeToPod(pod, links) },
		func() error { return k.awaitQueue(ctx, pod, links.HostIndex) },
	} {
		if err == nil {
			err = step()
		}
	}
	if err != nil && created {
		err = errors.Join(err, k.undoLink(pod, links))
	}
	return links, err
}

// ensureLink makes the veth pair, or finds the one that an earlier AddPod of
// this attachment made. created tells which.
func (k *kernel) ensureLink(pod Pod, ns netns.NsHandle, inPod *netlink.Handle) (links PodLinks, created bool, err error) {
	links, err = k.createLink(pod, ns, inPod)
	if !errors.Is(err, unix.EEXIST) {
		return links, err == nil || links.HostIndex != 0, err
	}
	host, err := k.main.LinkByName(pod.HostIfName)
	if rtnl.IsNoLink(err) {
		return PodLinks{}, false, fmt.Errorf("%s in %s: %w", pod.IfName, pod.Netns, ErrInterfaceExists)
	}
	if err != nil {
		return PodLinks{}, false, fmt.Errorf("look up %s: %w", pod.HostIfName, err)
	}
	links, ok, err := podEnds(host, pod, inPod)
	if err == nil && ok && !bytes.Equal(links.HostMAC, pod.HostMAC) {
		links.HostMAC = pod.HostMAC // the pod's neighbour; somebody changed the link's
		err = k.setMAC(host, pod.HostMAC)
	}
	if err != nil || ok {
		return links, false, err
	}
	// A link of this attachment's name whose other end is elsewhere is the
	// remnant of a sandbox that was made anew.
	if err := k.main.LinkDel(host); err != nil && !rtnl.IsNoLink(err) {
		return PodLinks{}, false, fmt.Errorf("remove stale %s: %w", pod.HostIfName, err)
	}
	links, err = k.createLink(pod, ns, inPod)
	if errors.Is(err, unix.EEXIST) {
		err = fmt.Errorf("%s in %s: %w", pod.IfName, pod.Netns, ErrInterfaceExists)
	}
	return links, err == nil || links.HostIndex != 0, err
}

// createLink makes the veth with its peer inside the pod's namespace. A
// HostIndex in the answer means that the link exists, even with an error.
func (k *kernel) createLink(pod Pod, ns netns.NsHandle, inPod *netlink.Handle) (PodLinks, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = pod.HostIfName
	attrs.HardwareAddr = pod.HostMAC
	attrs.MTU = pod.MTU
	attrs.Group = podGroup
	veth := netlink.NewVeth(attrs)
	veth.PeerName = pod.IfName
	veth.PeerHardwareAddr = pod.PodMAC
	veth.PeerMTU = uint32(pod.MTU)
	veth.PeerNamespace = netlink.NsFd(ns)
	if err := k.main.LinkAdd(veth); err != nil {
		return PodLinks{}, fmt.Errorf("make link %s with peer %s in %s: %w", pod.HostIfName, pod.IfName, pod.Netns, err)
	}
	links := PodLinks{HostMAC: pod.HostMAC, PodMAC: pod.PodMAC, HostIndex: veth.Index, MTU: pod.MTU}
	if links.HostIndex == 0 { // the library drops the error of its own look-up
		host, err := k.main.LinkByName(pod.HostIfName)
		if err != nil {
			return PodLinks{}, fmt.Errorf("look up %s just made: %w", pod.HostIfName, err)
		}
		links.HostIndex = host.Attrs().Index
	}
	peer, err := inPod.LinkByName(pod.IfName)
	if err != nil {
		return links, fmt.Errorf("look up %s in %s: %w", pod.IfName, pod.Netns, err)
	}
	links.PodIndex = peer.Attrs().Index
	return links, nil
}

// podEnds tells whether host's peer is the pod's interface, and describes both.
func podEnds(host netlink.Link, pod Pod, inPod *netlink.Handle) (PodLinks, bool, error) {
	peer, err := inPod.LinkByName(pod.IfName)
	if rtnl.IsNoLink(err) {
		return PodLinks{}, false, nil
	}
	if err != nil {
		return PodLinks{}, false, fmt.Errorf("look up %s in %s: %w", pod.IfName, pod.Netns, err)
	}
	h, p := host.Attrs(), peer.Attrs()
	if host.Type() != "veth" || peer.Type() != "veth" || h.ParentIndex != p.Index || p.ParentIndex != h.Index {
		return PodLinks{}, false, nil
	}
	return PodLinks{
		HostMAC: h.HardwareAddr, PodMAC: p.HardwareAddr,
		HostIndex: h.Index, PodIndex: p.Index, MTU: p.MTU,
	}, true, nil
}

func (k *kernel) setMAC(link netlink.Link, mac net.HardwareAddr) error {
	if err := k.main.LinkSetHardwareAddr(link, mac); err != nil {
		return fmt.Errorf("give %s the MAC address %s: %w", link.Attrs().Name, mac, err)
	}
	return nil
}

// undoLink removes a link that the failed call made.
func (k *kernel) undoLink(pod Pod, links PodLinks) error {
	err := k.main.LinkDel(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: links.HostIndex}})
	if err != nil && !rtnl.IsNoLink(err) {
		return fmt.Errorf("undo: remove %s: %w", pod.HostIfName, err)
	}
	return nil
}

func (k *kernel) raiseHostSide(pod Pod, links PodLinks) error {
	if err := k.main.LinkSetUp(rtnl.LinkRef(links.HostIndex)); err != nil {
		return fmt.Errorf("set %s up: %w", pod.HostIfName, err)
	}
	return nil
}

// routeToPod gives the host end the pod's neighbours and routes.
func (k *kernel) routeToPod(pod Pod, links PodLinks) error {
	for _, addr := range pod.Addrs() {
		if err := k.main.NeighSet(neighbour(links.HostIndex, addr, links.PodMAC)); err != nil {
			return fmt.Errorf("add neighbour %s to %s: %w", addr, pod.HostIfName, err)
		}
		if err := k.addPodRoute(pod, links.HostIndex, addr); err != nil {
			return err
		}
	}
	return nil
}

// awaitQueue waits until the host end sends what it is given. It got its
// carrier from the pod's end, and until a kernel worker has noticed it drops
// everything: the answer to a pod's first packet would be lost, and its first
// connection take a second. Since Linux 6.8 asking for the link waits for the
// worker; before, it is done within a millisecond or so, and not waited for
// beyond a few, since a late worker is no failure.
func (k *kernel) awaitQueue(ctx context.Context, pod Pod, index int) error {
	for range 10 {
		link, err := k.main.LinkByIndex(index)
		if err != nil {
			return fmt.Errorf("look up %s: %w", pod.HostIfName, err)
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

func (k *kernel) addPodRoute(pod Pod, index int, addr netip.Addr) error {
	err := k.main.RouteAdd(podRoute(index, addr))
	if !errors.Is(err, unix.EEXIST) {
		if err != nil {
			return fmt.Errorf("add route %s dev %s to table %d: %w", addr, pod.HostIfName, PodTable, err)
		}
		return nil
	}
	other, err := k.podRouteLink(addr)
	if err != nil || other == index {
		return err
	}
	name := fmt.Sprintf("link %d", other)
	if link, err := k.main.LinkByIndex(other); err == nil {
		name = link.Attrs().Name
	}
	if !strings.HasPrefix(name, LinkPrefix) { // to no pod: whoever put it into the table overruled Berth's
		if err := k.main.RouteReplace(podRoute(index, addr)); err != nil {
			return fmt.Errorf("replace route %s dev %s of table %d: %w", addr, name, PodTable, err)
		}
		return nil
	}
	return fmt.Errorf("route %s to %s: %w: %s", addr, pod.HostIfName, ErrAddressInUse, name)
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
