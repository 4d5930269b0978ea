package datapath

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Mismatch tells how the kernel differs from a wanted pod.
type Mismatch struct {
	Pod         Pod
	Differences []string // one a missing or wrong thing, at least one
}

// Error names every difference.
func (m *Mismatch) Error() string {
	return fmt.Sprintf("pod link %s: %s", m.Pod.HostIfName, strings.Join(m.Differences, "; "))
}

// CheckPod compares the kernel with a wanted pod on both sides and changes
// nothing. MTU and MAC addresses are compared when they are set in pod. It
// fails with a *Mismatch that names every difference, or as AddPod does where the
// namespace is not there.
func (n *Node) CheckPod(ctx context.Context, pod Pod) error {
	if err := n.begin(ctx); err != nil {
		return err
	}
	if err := pod.Validate(); err != nil {
		return fmt.Errorf("check pod link: %w", err)
	}
	ns, err := n.openPodNetns(pod)
	if err != nil {
		return fmt.Errorf("check %s: %w", pod.HostIfName, err)
	}
	defer func() { _ = ns.Close() }()
	inPod, err := rtnl.Handle(ns)
	if err != nil {
		return fmt.Errorf("open netlink in %s: %w", pod.Netns, err)
	}
	defer inPod.Close()

	c := &check{node: n, inPod: inPod, pod: pod}
	for _, step := range []func() error{c.links, c.hostSide, c.podSide} {
		if err := step(); err != nil {
			return fmt.Errorf("check %s: %w", pod.HostIfName, err)
		}
	}
	if len(c.found) > 0 {
		return &Mismatch{Pod: pod, Differences: c.found}
	}
	return nil
}

// check collects the differences of one pod.
type check struct {
	node       *Node
	inPod      *netlink.Handle
	pod        Pod
	host, peer *netlink.LinkAttrs // nil when missing
	found      []string
}

func (c *check) differs(format string, args ...any) {
	c.found = append(c.found, fmt.Sprintf(format, args...))
}

func (c *check) links() error {
	var err, podErr error
	c.host, err = c.find(c.node.main, c.pod.HostIfName, "on the node")
	c.peer, podErr = c.find(c.inPod, c.pod.IfName, "in the pod")
	if err := errors.Join(err, podErr); err != nil {
		return err
	}
	if c.host != nil && c.peer != nil && (c.host.ParentIndex != c.peer.Index || c.peer.ParentIndex != c.host.Index) {
		c.differs("%s on the node and %s in the pod are not one link", c.pod.HostIfName, c.pod.IfName)
	}
	c.link(c.host, c.pod.HostMAC)
	c.link(c.peer, c.pod.PodMAC)
	return nil
}

// find looks a link up; it is nil when missing.
func (c *check) find(h *netlink.Handle, name, where string) (*netlink.LinkAttrs, error) {
	link, err := h.LinkByName(name)
	if rtnl.IsNoLink(err) {
		c.differs("link %s is missing %s", name, where)
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up %s %s: %w", name, where, err)
	}
	return link.Attrs(), nil
}

func (c *check) link(l *netlink.LinkAttrs, mac net.HardwareAddr) {
	switch {
	case l == nil:
		return
	case l.Flags&net.FlagUp == 0:
		c.differs("%s is down", l.Name)
	}
	if c.pod.MTU != 0 && l.MTU != c.pod.MTU {
		c.differs("%s has MTU %d, not %d", l.Name, l.MTU, c.pod.MTU)
	}
	if mac != nil && !bytes.Equal(l.HardwareAddr, mac) {
		c.differs("%s has MAC address %s, not %s", l.Name, l.HardwareAddr, mac)
	}
}

func (c *check) hostSide() error {
	if c.host == nil {
		return nil
	}
	for _, addr := range c.pod.Addrs() {
		index, err := c.node.podRouteLink(addr)
		if err != nil {
			return err
		}
		switch {
		case index == 0:
			c.differs("no route to %s in table %d", addr, PodTable)
		case index != c.host.Index:
			c.differs("table %d sends %s to link %d, not %s", PodTable, addr, index, c.host.Name)
		}
		if c.peer == nil {
			continue
		}
		if err := c.neighbour(c.node.main, "the node", c.host.Index, addr, c.peer.HardwareAddr); err != nil {
			return err
		}
	}
	return nil
}

func (c *check) podSide() error {
	if c.peer == nil {
		return nil
	}
	for _, addr := range c.pod.Addrs() {
		for _, step := range []func(netip.Addr) error{c.address, c.wayOut} {
			if err := step(addr); err != nil {
				return err
			}
		}
		if c.host == nil {
			continue
		}
		if err := c.neighbour(c.inPod, "the pod", c.peer.Index, PodGateway(addr), c.host.HardwareAddr); err != nil {
			return err
		}
	}
	return nil
}

func (c *check) address(addr netip.Addr) error {
	list, err := rtnl.Whole(func() ([]netlink.Addr, error) {
		return c.inPod.AddrList(rtnl.LinkRef(c.peer.Index), rtnl.FamilyOf(addr))
	})
	if err != nil {
		return fmt.Errorf("list addresses in %s: %w", c.pod.Netns, err)
	}
	for _, a := range list {
		if got, ok := netip.AddrFromSlice(a.IP); ok && got.Unmap() == addr {
			return nil
		}
	}
	c.differs("%s lacks address %s", c.pod.IfName, addr)
	return nil
}

func (c *check) wayOut(addr netip.Addr) error {
	routes, err := rtnl.Whole(func() ([]netlink.Route, error) {
		return c.inPod.RouteList(rtnl.LinkRef(c.peer.Index), rtnl.FamilyOf(addr))
	})
	if err != nil {
		return fmt.Errorf("list routes in %s: %w", c.pod.Netns, err)
	}
	for _, want := range podSideRoutes(c.peer.Index, addr) {
		want.Family = rtnl.FamilyOf(addr)
		if missing, _ := diff([]netlink.Route{*want}, routes, uplinkRouteKey); len(missing) > 0 {
			c.differs("the pod lacks its route to %s", rtnl.RouteDst(*want))
		}
	}
	further := c.pod.Several || slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.Priority == rtnl.LaterMetric+c.peer.Index })
	if !further {
		return nil
	}
	rules, err := rtnl.Whole(func() ([]netlink.Rule, error) { return c.inPod.RuleList(rtnl.FamilyOf(addr)) })
	if err != nil {
		return fmt.Errorf("list rules in %s: %w", c.pod.Netns, err)
	}
	if !slices.ContainsFunc(rules, func(r netlink.Rule) bool {
		return r.Table == rtnl.LaterMetric+c.peer.Index && r.Src != nil && r.Src.String() == rtnl.HostPrefix(addr).String()
	}) {
		c.differs("the pod lacks its rule for packets from %s", addr)
	}
	return nil
}

// neighbour compares the permanent entry by which one end of the link knows the other.
func (c *check) neighbour(in *netlink.Handle, who string, link int, addr netip.Addr, mac net.HardwareAddr) error {
	list, err := rtnl.Whole(func() ([]netlink.Neigh, error) { return in.NeighList(link, rtnl.FamilyOf(addr)) })
	if err != nil {
		return fmt.Errorf("list neighbours of %s: %w", who, err)
	}
	for _, e := range list {
		if e.IP.Equal(addr.AsSlice()) && e.State&netlink.NUD_PERMANENT != 0 && bytes.Equal(e.HardwareAddr, mac) {
			return nil
		}
	}
	c.differs("%s lacks the permanent neighbour entry of %s at %s", who, addr, mac)
	return nil
}

// podRouteLink finds the link that PodTable sends an address to, 0 for none,
// without listing the table: the kernel names the route that matches.
func (k *kernel) podRouteLink(addr netip.Addr) (int, error) {
	routes, err := k.main.RouteGetWithOptions(addr.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look up the route to %s: %w", addr, err)
	}
	for _, r := range routes {
		if r.Table == PodTable && rtnl.RouteDst(r) == rtnl.HostPrefix(addr) {
			return r.LinkIndex, nil
		}
	}
	return 0, nil
}
