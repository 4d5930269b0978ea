package datapath

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// DetachPod is the fast part of removing a pod. It removes the pod's routes, after which no packet reaches the pod
// and the spoofing check drops the pod's packets. ReapLinks removes the link. The pod's namespace may be gone.
//
// It is idempotent, and never removes another link's route to the same address. Call it again if it fails.
func (n *Node) DetachPod(ctx context.Context, hostLink string, addrs []netip.Addr) error {
	if err := n.begin(ctx); err != nil {
		return err
	}
	if !IsHostLinkName(hostLink) {
		return fmt.Errorf("detach pod link: %q: want a name that HostLinkName makes", hostLink)
	}
	if _, err := n.podLinks.acquire(ctx, hostLink); err != nil {
		return fmt.Errorf("detach: %w", err)
	}
	defer n.podLinks.release(hostLink)
	n.podLinks.set(hostLink, detached, wiring{})
	link, err := n.main.LinkByName(hostLink)
	if rtnl.IsNoLink(err) { // the kernel removed its routes with it
		return nil
	}
	if err != nil {
		return fmt.Errorf("detach: look up %s: %w", hostLink, err)
	}
	for _, addr := range addrs {
		// The kernel also compares the link, so a route to another link is safe.
		if err := n.main.RouteDel(podRoute(link.Attrs().Index, addr)); err != nil && !rtnl.IsGone(err) {
			return fmt.Errorf("detach: remove route %s dev %s: %w", addr, hostLink, err)
		}
	}
	return nil
}

// ReapLinks removes a batch of pod links. It ignores missing links, and links that AddPod has reused since their DetachPod. It
// rejects names that HostLinkName cannot have made. After an error some links may be left; call it again.
func (n *Node) ReapLinks(ctx context.Context, hostLinks []string) error {
	if err := n.begin(ctx); err != nil {
		return err
	}
	for _, name := range hostLinks {
		if !IsHostLinkName(name) {
			return fmt.Errorf("remove pod links: %q is not a name that HostLinkName makes", name)
		}
	}
	_, err := n.reaper.reap(ctx, hostLinks)
	return err
}

// reaper removes pod links. It has a socket of its own, as removals wait for the kernel.
type reaper struct {
	podLinks *podLinks
	socket   *nl.SocketHandle
	batches  atomic.Uint32 // chooses the link group of the next batch
}

func newReaper(ns netns.NsHandle, links *podLinks) (*reaper, error) {
	s, err := nl.GetNetlinkSocketAt(ns, netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	return &reaper{podLinks: links, socket: &nl.SocketHandle{Socket: s}}, nil
}

func (r *reaper) close() { r.socket.Close() }

// reap is ReapLinks for names that were checked. It returns the names of the links that it removed.
func (r *reaper) reap(ctx context.Context, links []string) (reaped []string, err error) {
	acquired, err := r.podLinks.acquireAll(ctx, links)
	if err != nil {
		return nil, fmt.Errorf("remove pod links: %w", err)
	}
	defer func() {
		for _, name := range acquired {
			r.podLinks.release(name)
		}
	}()
	return rtnl.RemoveLinks(r.socket, reapGroupMin+r.batches.Add(1)%(reapGroupMax-reapGroupMin), acquired)
}
