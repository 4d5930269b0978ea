package datapath

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// EventKind is the kind of a change, and determines the reaction.
type EventKind string

const (
	// LinkAppeared: a link that may be an ENI's or a port's was added, or changed its name or MAC address.
	LinkAppeared EventKind = "link-appeared"
	// LinkVanished: such a link, or that of a live pod, was removed.
	LinkVanished EventKind = "link-vanished"
	// StateLost: something of Berth's was removed, switched off or overruled. Repair restores it.
	StateLost EventKind = "state-lost"
	// PortStateLost: the same happened to something that a port or branch (package plug) needs on the node. Package
	// plug restores it, and not Repair.
	PortStateLost EventKind = "port-state-lost"
	// AddressChanged: an address was added to or removed from a link of the node (NodeAddresses), or other software added
	// or removed a route to one (ForeignRoutes).
	AddressChanged EventKind = "address-changed"
	// Resync: events were lost. All state must be compared again.
	Resync EventKind = "resync"
)

// Event is one change in the kernel.
type Event struct {
	Kind EventKind
	Link string           // set if the event is about a link or a port's state on a link
	MAC  net.HardwareAddr // set if the event is about a link
	What string           // for logs
}

// Watch reports changes until ctx ends, and then closes the channel. It does not report existing state, which
// SetUplink and Repair read. If the reader is too slow and the kernel's buffer overflows, a Resync follows. Changes by
// this Node's own calls may be reported too; Repair then finds nothing to do.
func (n *Node) Watch(ctx context.Context) (<-chan Event, error) {
	if err := n.begin(ctx); err != nil {
		return nil, err
	}
	w := &watcher{node: n, out: make(chan Event, 64), links: map[int]seenLink{}, process: processName(), sysctls: make(chan struct{}, 1)}
	n.foreign.watch(false) // what an earlier Watch heard
	route, err := nl.SubscribeAt(n.ns, netns.None(), unix.NETLINK_ROUTE,
		unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_NEIGH,
		unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF)
	if err != nil {
		return nil, fmt.Errorf("watch links and routes: %w", err)
	}
	filter, err := nl.SubscribeAt(n.ns, netns.None(), unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if err != nil {
		route.Close()
		return nil, fmt.Errorf("watch nftables: %w", err)
	}
	// After the subscription, so that no link is missed.
	links, err := rtnl.Whole(n.slow.LinkList)
	if err != nil {
		route.Close()
		filter.Close()
		return nil, fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		w.links[l.Attrs().Index] = seen(l)
	}
	n.foreign.watch(true)
	var readers sync.WaitGroup
	readers.Go(func() { w.read(ctx, route, w.routeMessage) })
	readers.Go(func() { w.read(ctx, filter, w.nftMessage) })
	readers.Go(func() { w.readSysctls(ctx) })
	go func() {
		<-ctx.Done()
		n.foreign.watch(false)
		route.Close()
		filter.Close()
		readers.Wait()
		close(w.out)
	}()
	return w.out, nil
}

// watcher turns netlink messages into events.
type watcher struct {
	node  *Node
	out   chan Event
	links map[int]seenLink // by index; used by the route reader only

	process string        // the name of this process, as the kernel reports it
	sysctls chan struct{} // has an element when settings may have changed

	pending []Event // events of an nftables transaction not yet read to its end; used by the nftables reader only
}

type seenLink struct {
	name string
	mac  string
	mtu  int
	up   bool
}

func seen(l netlink.Link) seenLink {
	a := l.Attrs()
	return seenLink{a.Name, string(a.HardwareAddr), a.MTU, a.Flags&net.FlagUp != 0}
}

func (w *watcher) emit(ctx context.Context, e Event) {
	select {
	case w.out <- e:
	case <-ctx.Done():
	}
}

// message is one netlink message without its framing.
type message struct {
	kind, flags uint16
	data        []byte
}

func (w *watcher) read(ctx context.Context, s *nl.NetlinkSocket, handle func(context.Context, message)) {
	for ctx.Err() == nil {
		msgs, from, err := s.Receive()
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, unix.ENOBUFS):
			drain(s)
			w.node.foreign.watch(true) // read again
			w.emit(ctx, Event{Kind: Resync, What: "the kernel dropped events"})
			continue
		case err != nil:
			w.node.foreign.watch(false)
			w.emit(ctx, Event{Kind: Resync, What: "reading events failed: " + err.Error()})
			return
		case from.Pid != nl.PidKernel:
			continue
		}
		for _, m := range msgs {
			handle(ctx, message{m.Header.Type, m.Header.Flags, m.Data})
		}
	}
}

// drain discards queued messages. The kernel reports a loss once, and drops further messages silently until the queue
// is empty. Only then does the reader get every event after the Resync.
func drain(s *nl.NetlinkSocket) {
	moment, forever := unix.Timeval{Usec: 1000}, unix.Timeval{}
	if s.SetReceiveTimeout(&moment) != nil {
		return // closed
	}
	for {
		if _, _, err := s.Receive(); err != nil && !errors.Is(err, unix.ENOBUFS) {
			break // EAGAIN: empty
		}
	}
	_ = s.SetReceiveTimeout(&forever)
}

func (w *watcher) routeMessage(ctx context.Context, m message) {
	switch m.kind {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		w.linkMessage(ctx, m)
	case unix.RTM_DELROUTE:
		w.tell(ctx, w.foreignRoute(m))
		w.tell(ctx, w.lostRoute(m.data))
	case unix.RTM_NEWROUTE:
		w.tell(ctx, w.foreignRoute(m))
		w.tell(ctx, w.overruled(m.data))
	case unix.RTM_DELRULE:
		w.tell(ctx, lostRule(m.data))
	case unix.RTM_NEWRULE:
		w.tell(ctx, rulesBeforeBranches(m.data))
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		w.tell(ctx, w.strayAddress(m))
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		w.tell(ctx, w.lostNeighbour(m))
	case unix.RTM_NEWNETCONF:
		if w.changesSettings(m.data) {
			select {
			case w.sysctls <- struct{}{}:
			default: // a read is pending already
			}
		}
	}
}

// tell emits an event unless it is empty. Its default kind is StateLost.
func (w *watcher) tell(ctx context.Context, e Event) {
	if e.What == "" {
		return
	}
	e.Kind = cmp.Or(e.Kind, StateLost)
	w.emit(ctx, e)
}

func (w *watcher) linkMessage(ctx context.Context, m message) {
	header := nl.DeserializeIfInfomsg(m.data)
	if header.Family != unix.AF_UNSPEC {
		return // a bridge port or IPv6 message about the link
	}
	link, err := netlink.LinkDeserialize(nil, m.data)
	if err != nil {
		w.emit(ctx, Event{Kind: Resync, What: "unreadable link message: " + err.Error()})
		return
	}
	if m.kind == unix.RTM_DELLINK {
		w.linkVanished(ctx, link)
	} else {
		w.linkChanged(ctx, link)
	}
}

// linkVanished handles the removal of a link.
func (w *watcher) linkVanished(ctx context.Context, link netlink.Link) {
	name, index := link.Attrs().Name, link.Attrs().Index
	w.tell(ctx, w.linkLost(index, name))
	delete(w.links, index)
	w.node.sysctls.forgetLink(name)
	if _, isLive := w.node.podLinks.liveName(index); isPodLink(link) && !isLive {
		return // removed by ReapLinks
	}
	w.emit(ctx, Event{Kind: LinkVanished, Link: name, MAC: link.Attrs().HardwareAddr, What: "link " + name + " vanished"})
}

// linkChanged handles a new link, or a change of a link.
func (w *watcher) linkChanged(ctx context.Context, link netlink.Link) {
	now, index := seen(link), link.Attrs().Index
	if !now.up {
		w.tell(ctx, w.linkLost(index, now.name))
	}
	podName, isLive := w.node.podLinks.liveName(index)
	ours := isPodLink(link)
	event := Event{Link: now.name, MAC: link.Attrs().HardwareAddr}
	before, known := w.links[index]
	w.links[index] = now
	if known && before.name != now.name {
		w.node.sysctls.forgetLink(before.name)
	}
	switch {
	case !ours && (!known || before.mac != now.mac || before.name != now.name):
		event.Kind, event.What = LinkAppeared, "link "+now.name+" appeared"
		w.emit(ctx, event)
	case !known || ours && !(isLive && podName == now.name):
	default:
		loopback := link.Attrs().Flags&net.FlagLoopback != 0
		event.What = before.lost(now, loopback)
		if !ours && !loopback && !w.isUplink(now.mac) {
			event.Kind = PortStateLost // not restored by Repair; a port may depend on it
		}
		w.tell(ctx, event)
	}
}

// isUplink reports whether an ENI that SetUplink set up has this MAC address.
func (w *watcher) isUplink(mac string) bool {
	return slices.ContainsFunc(w.node.uplinks.list(), func(u Uplink) bool { return string(u.MAC) == mac })
}

// lost describes the state that a known link lost in a change, or returns "".
func (before seenLink) lost(now seenLink, loopback bool) string {
	switch {
	case before.up && !now.up:
		// When a link goes down, the kernel removes its routes without a notification.
		return "link " + now.name + " went down"
	case before.mac != now.mac:
		return "link " + now.name + " has MAC address " + net.HardwareAddr([]byte(now.mac)).String()
	case before.mtu != now.mtu:
		return fmt.Sprintf("link %s has MTU %d", now.name, now.mtu)
	case !before.up && now.up && loopback:
		// Repair can restore the routes of blocks on it only now.
		return "link " + now.name + " came up"
	}
	return ""
}

// The kernel reports changes of forwarding and rp_filter (RTM_NEWNETCONF), but not of accept_ra, accept_dad and
// use_oif_addrs_only. So all settings are also read periodically: a few small files for each ENI.

const sysctlInterval = 5 * time.Second

// sysctlRepeat is the minimum time between two reports of a wrong setting, which may not be writable, or be reverted
// by other software each time.
const sysctlRepeat = time.Minute

// From linux/netconf.h: the aligned length of struct netconfmsg, NETCONFA_IFINDEX and, for a value of all links,
// NETCONFA_IFINDEX_ALL, which is -1.
const (
	netconfHeader  = 4
	netconfIfIndex = 1
	netconfAll     = math.MaxUint32
)

// readSysctls reports settings that changed, until ctx ends.
func (w *watcher) readSysctls(ctx context.Context) {
	due := time.NewTicker(sysctlInterval)
	defer due.Stop()
	reported := reportedSysctls{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-due.C:
		case <-w.sysctls:
		}
		if s, err := w.node.established(); err == nil {
			w.tell(ctx, Event{What: strings.Join(reported.due(w.node.sysctls.changed(s.config.Sysctls), time.Now()), ", ")})
		}
	}
}

// reportedSysctls are the times at which wrong settings were last reported.
type reportedSysctls map[string]time.Time

// due returns the wrong settings to report now, and records them as reported.
func (t reportedSysctls) due(wrong []string, now time.Time) (list []string) {
	maps.DeleteFunc(t, func(_ string, at time.Time) bool { return now.Sub(at) >= sysctlRepeat })
	for _, what := range wrong {
		if _, reported := t[what]; !reported {
			t[what] = now
			list = append(list, what)
		}
	}
	return list
}

// changesSettings reports whether a message is about settings that Berth may have made: those of all links, or of one
// that is not a pod's. The kernel also reports the settings of a new link.
func (w *watcher) changesSettings(data []byte) bool {
	index := attributes(data, netconfHeader)[netconfIfIndex]
	if len(index) != 4 {
		return false
	}
	switch i := binary.NativeEndian.Uint32(index); i {
	case netconfAll:
		return true
	default:
		link, known := w.links[int(i)]
		return known && !strings.HasPrefix(link.name, LinkPrefix)
	}
}
