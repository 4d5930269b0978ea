package vlan

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/hostlink"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// find finds the node's link that is a port's trunk; nil: none has its MAC address. VLANs and
// their like carry the MAC address of the link below them, so they do not count. The address
// comes from elsewhere, and must not lead to a pod's link, or to a bridge. Errors:
// plug.ErrInvalid.
func (p *Plugger) find(r plug.Ref) (*netlink.LinkAttrs, error) {
	links, err := rtnl.Whole(p.node.NL.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links of the node: %w", err)
	}
	var fit []*netlink.LinkAttrs
	var unfit, names []string
	for _, l := range links {
		a := l.Attrs()
		if !sameMAC(a.HardwareAddr, r.Trunk) {
			continue
		}
		if why := unfitAs(l); why != "" {
			unfit = append(unfit, a.Name+", "+why)
			continue
		}
		fit, names = append(fit, a), append(names, a.Name)
	}
	switch {
	case len(fit) == 1:
		return fit[0], nil
	case len(fit) > 1:
		return nil, fmt.Errorf("Trunk: %q: want the MAC address of one link of the node, not that of %s: %w", r.Trunk, strings.Join(names, " and "), plug.ErrInvalid)
	case len(unfit) > 0:
		return nil, fmt.Errorf("Trunk: %q: want the MAC address of a network card of the node, not that of %s: %w", r.Trunk, strings.Join(unfit, " and "), plug.ErrInvalid)
	}
	return nil, nil
}

// unfitAs tells why a link is no trunk; empty: it may be one. A card has no kind at the kernel
// ("device"); in the lab cards are veths whose other ends are elsewhere.
func unfitAs(l netlink.Link) string {
	a := l.Attrs()
	switch kind := l.Type(); {
	case a.Group >= plug.LinkGroup && a.Group>>16 <= rtnl.Protocol:
		return "which Berth made for a pod"
	case kind == "veth" && a.NetNsID < 0:
		return "a veth between places on the node"
	case kind != "device" && kind != "veth":
		return "which is of kind " + kind
	case a.Flags&net.FlagLoopback != 0 || a.EncapType != "ether":
		return "which is not Ethernet"
	case a.MasterIndex != 0:
		return "a port of a bridge or bond"
	}
	return ""
}

func sameMAC(a net.HardwareAddr, text string) bool {
	b, err := net.ParseMAC(text)
	return err == nil && bytes.Equal(a, b)
}

// parent is the link of the node's that a VLAN is on; nil: it is on none.
func (p *Plugger) parent(l *netlink.Vlan, at place) (*netlink.LinkAttrs, error) {
	if !at.hasParent(l) { // in its own namespace
		return nil, nil
	}
	on, err := p.node.NL.LinkByIndex(l.ParentIndex)
	if rtnl.IsNoLink(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up link %d of the node: %w", l.ParentIndex, err)
	}
	return on.Attrs(), nil
}

// again is how often the trunk's link is looked for at least, besides when the kernel tells of it.
const again = 100 * time.Millisecond

// await waits until the node has a port's trunk, for so long at most. Errors: plug.ErrInvalid,
// plug.ErrNotReady with what is missing.
func (p *Plugger) await(ctx context.Context, r plug.Ref, most time.Duration) (*netlink.LinkAttrs, error) {
	if l, err := p.find(r); err != nil || l != nil {
		return l, err
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	events, err := nl.SubscribeAt(p.node.NS, netns.None(), unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		return nil, fmt.Errorf("watch links of the node: %w", err)
	}
	defer events.Close()
	timeout := unix.NsecToTimeval(int64(again))
	if err := events.SetReceiveTimeout(&timeout); err != nil {
		return nil, fmt.Errorf("watch links of the node: %w", err)
	}
	for {
		l, err := p.find(r) // after the subscription, so nothing is missed
		if err != nil || l != nil {
			return l, err
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%w: Trunk: %q: no link of the node has this MAC address after %s: the trunk is not attached, or its link has not come up yet",
				plug.ErrNotReady, r.Trunk, time.Since(began).Round(time.Millisecond))
		}
		news(events, r.Trunk)
	}
}

// news returns when the kernel tells of a link with a MAC address, or of nothing for a while.
func news(events *nl.NetlinkSocket, mac string) {
	for end := time.Now().Add(again); time.Now().Before(end); {
		messages, _, err := events.Receive()
		if err != nil {
			return // lost events (ENOBUFS) and the timeout (EAGAIN) mean: look again
		}
		for _, m := range messages {
			l, err := netlink.LinkDeserialize(nil, m.Data)
			if m.Header.Type == unix.RTM_NEWLINK && (err != nil || sameMAC(l.Attrs().HardwareAddr, mac)) {
				return
			}
		}
	}
}

// mostMTU is that of EC2's links (EC2 user guide, "Jumbo frames (9001 MTU)").
const mostMTU = 9001

// raise has the trunk carry what a VLAN on it is to carry: a VLAN cannot have a larger MTU
// than its link, nor be up without it. Nobody else sets the link of a trunk up: it is no
// uplink of the data path. Its MTU is raised only, as other ports have theirs by it. The node
// itself takes no IPv6 address, and no route, by a trunk that nobody has set up.
func (p *Plugger) raise(ctx context.Context, trunk *netlink.LinkAttrs, mtu int) error {
	done, err := p.turns.Take(ctx, "link "+trunk.Name)
	if err != nil {
		return err
	}
	defer done()
	l, err := p.node.NL.LinkByIndex(trunk.Index) // as the turn before left it
	if err != nil {
		return fmt.Errorf("look up the trunk %s: %w", trunk.Name, err)
	}
	a := l.Attrs()
	if mtu > a.MTU {
		if mtu > mostMTU {
			return fmt.Errorf("Interface.MTU: %d: want %d at most on the trunk %s: %w", mtu, mostMTU, a.Name, plug.ErrInvalid)
		}
		if err := p.node.NL.LinkSetMTU(rtnl.LinkRef(a.Index), mtu); err != nil {
			return fmt.Errorf("give the trunk %s the MTU %d: %w", a.Name, mtu, err)
		}
	}
	if a.Flags&net.FlagUp != 0 {
		return nil
	}
	return p.node.Raise(hostlink.Link{Name: a.Name, Index: a.Index})
}
