package vlan

import (
	"bytes"
	"context"
	"errors"
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

// trunks finds trunks on the node and sets them up.
type trunks struct {
	node  *hostlink.Node
	turns plug.Turns // by name of the link
}

// find returns the trunk of a port, or nil if no link of the node has its MAC address. It ignores
// VLANs and similar links, which share the MAC address of their parent. The address comes from the
// provider, so it must not select a link of a pod or a bridge. Errors: plug.ErrInvalid.
func (t *trunks) find(r plug.Ref) (*netlink.LinkAttrs, error) {
	links, err := rtnl.Whole(t.node.NL.LinkList)
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
		if why := unfitReason(l); why != "" {
			unfit = append(unfit, a.Name+", "+why)
			continue
		}
		fit, names = append(fit, a), append(names, a.Name)
	}
	switch {
	case len(fit) == 1:
		return fit[0], nil
	case len(fit) > 1:
		return nil, fmt.Errorf("Trunk: %q: want the MAC address of one link of the node, not of %s: %w", r.Trunk, strings.Join(names, " and "), plug.ErrInvalid)
	case len(unfit) > 0:
		return nil, fmt.Errorf("Trunk: %q: want the MAC address of a network card of the node, not of %s: %w", r.Trunk, strings.Join(unfit, " and "), plug.ErrInvalid)
	}
	return nil, nil
}

// unfitReason returns why a link cannot be a trunk, or "". Network cards have no kind in netlink
// ("device"). In the lab, they are veths whose peers are in another namespace.
func unfitReason(l netlink.Link) string {
	a := l.Attrs()
	switch kind := l.Type(); {
	case a.Group >= plug.LinkGroup && a.Group>>16 <= rtnl.Protocol:
		return "which Berth created for a pod"
	case kind == "veth" && a.NetNsID < 0:
		return "a veth with both ends on the node"
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

// parent returns the link of the node that a VLAN is on, or nil.
func (t *trunks) parent(l *netlink.Vlan, at place) (*netlink.LinkAttrs, error) {
	if !at.hasParent(l) { // the parent is in the VLAN's own namespace
		return nil, nil
	}
	on, err := t.node.NL.LinkByIndex(l.ParentIndex)
	if rtnl.IsNoLink(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up link %d of the node: %w", l.ParentIndex, err)
	}
	return on.Attrs(), nil
}

// pollInterval is the polling interval for the trunk, in addition to netlink events.
const pollInterval = 100 * time.Millisecond

// await waits up to most until the node has the trunk of a port. Errors: plug.ErrInvalid; plug.ErrNotReady, which says
// what is missing.
func (t *trunks) await(ctx context.Context, r plug.Ref, most time.Duration) (*netlink.LinkAttrs, error) {
	if l, err := t.find(r); err != nil || l != nil {
		return l, err
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	events, err := nl.SubscribeAt(t.node.NS, netns.None(), unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		return nil, fmt.Errorf("watch links of the node: %w", err)
	}
	defer events.Close()
	timeout := unix.NsecToTimeval(int64(pollInterval))
	if err := events.SetReceiveTimeout(&timeout); err != nil {
		return nil, fmt.Errorf("watch links of the node: %w", err)
	}
	for {
		l, err := t.find(r) // after the subscription, so that no event is missed
		if err != nil || l != nil {
			return l, err
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%w: Trunk: %q: no link of the node has this MAC address after %s: the trunk is not attached, or its link has not appeared yet",
				plug.ErrNotReady, r.Trunk, time.Since(began).Round(time.Millisecond))
		}
		waitForLink(events, r.Trunk)
	}
}

// waitForLink returns when the kernel reports a link with the MAC address, or after the polling interval.
func waitForLink(events *nl.NetlinkSocket, mac string) {
	for end := time.Now().Add(pollInterval); time.Now().Before(end); {
		messages, _, err := events.Receive()
		if err != nil {
			return // look again after lost events (ENOBUFS) and after the timeout (EAGAIN)
		}
		for _, m := range messages {
			l, err := netlink.LinkDeserialize(nil, m.Data)
			if m.Header.Type == unix.RTM_NEWLINK && (err != nil || sameMAC(l.Attrs().HardwareAddr, mac)) {
				return
			}
		}
	}
}

// mostMTU is the largest MTU of EC2 links (EC2 user guide, "Jumbo frames (9001 MTU)").
const mostMTU = 9001

// raise prepares the trunk for a VLAN, which cannot have a larger MTU than its parent and cannot be up while the parent is
// down. The data path does not set trunks up, as they are not uplinks. raise never lowers the MTU, because other VLANs
// may need it. The node gets no IPv6 address or route on a trunk that raise sets up.
func (t *trunks) raise(ctx context.Context, trunk *netlink.LinkAttrs, mtu int) error {
	done, err := t.turns.Take(ctx, "link "+trunk.Name)
	if err != nil {
		return err
	}
	defer done()
	l, err := t.node.NL.LinkByIndex(trunk.Index) // the previous turn may have changed it
	if err != nil {
		return fmt.Errorf("look up the trunk %s: %w", trunk.Name, err)
	}
	a := l.Attrs()
	if mtu > a.MTU {
		if mtu > mostMTU {
			return fmt.Errorf("Interface.MTU: %d: want at most %d on the trunk %s: %w", mtu, mostMTU, a.Name, plug.ErrInvalid)
		}
		if err := t.node.NL.LinkSetMTU(rtnl.LinkRef(a.Index), mtu); err != nil {
			return fmt.Errorf("set the MTU of the trunk %s to %d: %w", a.Name, mtu, err)
		}
	}
	if a.Flags&net.FlagUp != 0 {
		return nil
	}
	return t.node.Raise(hostlink.Link{Name: a.Name, Index: a.Index})
}

// check adds the differences of the trunk.
func (t *trunks) check(r plug.Ref, found *plug.Differences) error {
	trunk, err := t.find(r)
	switch {
	case errors.Is(err, plug.ErrInvalid):
		found.Add("%v", err)
	case err != nil:
		return err
	case trunk == nil:
		found.Add("no link of the node has the trunk's MAC address %s", r.Trunk)
	case trunk.Flags&net.FlagUp == 0:
		found.Add("the trunk %s is down", trunk.Name)
	}
	return nil
}
