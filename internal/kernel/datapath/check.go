package datapath

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Mismatch is the error of a pod that differs from the desired state.
type Mismatch struct {
	Pod         Pod
	Differences []string // at least one
}

// Error names every difference.
func (m *Mismatch) Error() string {
	return fmt.Sprintf("pod link %s: %s", m.Pod.HostIfName, strings.Join(m.Differences, "; "))
}

// CheckPod compares both sides of a pod's link with the desired state and changes nothing. It compares MTU and MAC
// addresses if they are set in pod. Errors: a *Mismatch with every difference; ErrNoNetns; ErrNotNetns.
func (n *Node) CheckPod(ctx context.Context, pod Pod) error {
	if err := n.begin(ctx); err != nil {
		return err
	}
	if err := pod.Validate(); err != nil {
		return fmt.Errorf("check pod link: %w", err)
	}
	e, err := n.openPod(pod)
	if err != nil {
		return fmt.Errorf("check %s: %w", pod.HostIfName, err)
	}
	defer e.close()
	c := &check{podEnds: e}
	for _, step := range []func() error{c.checkLinks, c.checkHostSide, c.checkPodSide} {
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
	*podEnds
	host, peer *netlink.LinkAttrs // nil when missing
	found      []string
}

func (c *check) differs(format string, args ...any) {
	c.found = append(c.found, fmt.Sprintf(format, args...))
}

func (c *check) checkLinks() error {
	var err, podErr error
	c.host, err = c.find(c.k.main, c.pod.HostIfName, "on the node")
	c.peer, podErr = c.find(c.inPod, c.pod.IfName, "in the pod")
	if err := errors.Join(err, podErr); err != nil {
		return err
	}
	if c.host != nil && c.peer != nil && (c.host.ParentIndex != c.peer.Index || c.peer.ParentIndex != c.host.Index) {
		c.differs("%s on the node and %s in the pod are not one link", c.pod.HostIfName, c.pod.IfName)
	}
	if c.host != nil {
		c.found = append(c.found, c.pod.hostLink().Differences(c.host)...)
	}
	if c.peer != nil {
		c.found = append(c.found, rtnl.Link{Name: c.pod.IfName, MAC: c.pod.PodMAC, MTU: c.pod.MTU}.Differences(c.peer)...)
	}
	return nil
}

// find looks a link up. It returns nil if the link is missing.
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

func (c *check) checkHostSide() error {
	if c.host == nil {
		return nil
	}
	for _, addr := range c.pod.Addrs() {
		index, err := c.k.podRouteLink(addr)
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
		if err := c.checkNeighbour(c.k.ns, "the node", rtnl.PermanentNeighbour(c.host.Index, addr, c.peer.HardwareAddr)); err != nil {
			return err
		}
	}
	return nil
}

func (c *check) checkPodSide() error {
	if c.peer == nil {
		return nil
	}
	for _, addr := range c.pod.Addrs() {
		for _, step := range []func(netip.Addr) error{c.checkAddress, c.checkWayOut} {
			if err := step(addr); err != nil {
				return err
			}
		}
		if c.host == nil {
			continue
		}
		if err := c.checkNeighbour(c.ns, "the pod", rtnl.PermanentNeighbour(c.peer.Index, PodGateway(addr), c.host.HardwareAddr)); err != nil {
			return err
		}
	}
	return nil
}

func (c *check) checkAddress(addr netip.Addr) error {
	list, err := rtnl.Whole(func() ([]netlink.Addr, error) {
		return c.inPod.AddrList(rtnl.LinkRef(c.peer.Index), rtnl.FamilyOf(addr))
	})
	if err != nil {
		return fmt.Errorf("list addresses in %s: %w", c.pod.Netns, err)
	}
	if !slices.ContainsFunc(list, func(a netlink.Addr) bool { return rtnl.AddrOf(a.IP) == addr }) {
		c.differs("%s lacks address %s", c.pod.IfName, addr)
	}
	return nil
}

func (c *check) checkWayOut(addr netip.Addr) error {
	family := rtnl.FamilyOf(addr)
	routes, err := rtnl.Whole(func() ([]netlink.Route, error) {
		return c.inPod.RouteList(rtnl.LinkRef(c.peer.Index), family)
	})
	if err != nil {
		return fmt.Errorf("list routes in %s: %w", c.pod.Netns, err)
	}
	// Other software may set the source address of a route.
	key := func(r netlink.Route) rtnl.Route {
		r.Src = nil
		return rtnl.RouteOf(r)
	}
	d := rtnl.Kind[netlink.Route, rtnl.Route]{Key: key}.Compare(podSideRoutes(c.peer.Index, addr), routes)
	for _, r := range d.Missing {
		c.differs("the pod lacks its route to %s", rtnl.RouteDst(r))
	}
	further := c.pod.Several || slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.Priority == rtnl.LaterMetric+c.peer.Index })
	if !further {
		return nil
	}
	from, err := rtnl.SourceRules(c.peer.Index, family, c.inPod)
	if err != nil {
		return fmt.Errorf("%s: %w", c.pod.Netns, err)
	}
	if !slices.Contains(from, addr) {
		c.differs("the pod lacks its rule for packets from %s", addr)
	}
	return nil
}

// checkNeighbour checks one end's permanent neighbour entry for the other end.
func (c *check) checkNeighbour(in netns.NsHandle, who string, desired *netlink.Neigh) error {
	has, err := rtnl.HasNeighbour(in, desired)
	if err != nil {
		return fmt.Errorf("look up a neighbour of %s: %w", who, err)
	}
	if !has {
		c.differs("%s lacks the permanent neighbour entry of %s at %s", who, desired.IP, desired.HardwareAddr)
	}
	return nil
}

// podRouteLink returns the link to which PodTable routes an address, 0 for none. It does not list the table: the
// kernel returns the matching route.
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
