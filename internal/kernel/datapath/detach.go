package datapath

import (
	"context"
	"errors"
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

// ReapLinks removes a batch of pod links. The kernel waits for RCU, about 20 ms (measured), in each removal, and only
// once for all links of a group that is removed. So the links are first moved to a group that only this batch has.
//
// It ignores missing links, and links that AddPod has reused since their DetachPod. It rejects names that
// HostLinkName cannot have made. After an error some links may be left; call it again.
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
	sockets  map[int]*nl.SocketHandle
	batches  atomic.Uint32 // chooses the link group of the next batch
}

func newReaper(ns netns.NsHandle, links *podLinks) (*reaper, error) {
	s, err := nl.GetNetlinkSocketAt(ns, netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	return &reaper{podLinks: links, sockets: map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}}}, nil
}

func (r *reaper) close() {
	for _, s := range r.sockets {
		s.Close()
	}
}

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
	group := int(reapGroupMin + r.batches.Add(1)%(reapGroupMax-reapGroupMin))
	var errs []error
	for _, name := range acquired {
		switch err := r.moveToGroup(name, group); {
		case err == nil:
			reaped = append(reaped, name)
		case !rtnl.IsNoLink(err):
			errs = append(errs, fmt.Errorf("remove %s: set link group: %w", name, err))
		}
	}
	if len(reaped) == 0 {
		return nil, errors.Join(errs...)
	}
	if err := r.request(unix.RTM_DELLINK, groupAttribute(group)); err != nil && !rtnl.IsNoLink(err) {
		return nil, errors.Join(append(errs, fmt.Errorf("remove %d pod links: %w", len(reaped), err))...)
	}
	return reaped, errors.Join(errs...)
}

func (r *reaper) moveToGroup(name string, group int) error {
	return r.request(unix.RTM_SETLINK, nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)), groupAttribute(group))
}

func groupAttribute(group int) *nl.RtAttr {
	return nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(uint32(group)))
}

// request is a netlink request about links for which the library has no function.
func (r *reaper) request(kind int, attributes ...*nl.RtAttr) error {
	req := nl.NewNetlinkRequest(kind, unix.NLM_F_ACK)
	req.Sockets = r.sockets
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	for _, a := range attributes {
		req.AddData(a)
	}
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}
