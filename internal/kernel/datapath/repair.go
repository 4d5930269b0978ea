package datapath

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Wanted is all that should exist on a node.
type Wanted struct {
	Config   Config
	Carriers Carriers // as Config.Uplinks needs them; nil: none
	Pods     []Pod
	// Spare names pod links of which no more is known than that they may be in
	// use: neither they nor their routes are removed.
	Spare []string
}

// Repair compares Wanted with the kernel, puts back what is missing and removes
// what is Berth's and not wanted. It names each change; with nothing to change
// it writes nothing. What Berth did not make is left alone.
//
// It is for the start of the daemon, where it also makes the Node know the
// pods of before, and for Watch's events. Wanted may be a moment old: a pod
// that DetachPod was called for since is not brought back, nor is one removed
// that AddPod was called for, or given the addresses that it had before. Of a
// pod it looks at the node's side only; the inside is the pod's own (CheckPod
// compares it). A sysctl that cannot be set, an ENI whose link has not appeared and a pod whose namespace is
// gone are errors that do not keep it from the rest; the errors are joined.
func (n *Node) Repair(ctx context.Context, want Wanted) (repaired []string, err error) {
	if err := n.begin(ctx); err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, p := range want.Pods {
		if err := p.Validate(); err != nil {
			return nil, fmt.Errorf("repair: pod %s: %w", p.HostIfName, err)
		}
		names[p.HostIfName] = true
	}
	for _, name := range want.Spare {
		names[name] = true
	}
	n.setupMu.Lock()
	defer n.setupMu.Unlock()
	before := n.podLinks.detachedLinks()

	var errs []error
	if repaired, err = n.setup(want.Config); err != nil {
		errs = append(errs, fmt.Errorf("repair: %w", err))
		if !errors.Is(err, errSysctl) || n.set.Load() == nil {
			return repaired, errs[0]
		}
	}
	carriers := want.Carriers
	if carriers == nil {
		carriers = want.Config.Uplinks.none()
	}
	did, err := carriers.restore(n)
	repaired, errs = append(repaired, did...), append(errs, err)
	inv, err := n.Inventory(ctx)
	if err != nil {
		return repaired, errors.Join(append(errs, fmt.Errorf("repair: %w", err))...)
	}
	for _, part := range []func() ([]string, error){
		func() ([]string, error) { return carriers.tidy(n, inv) },
		func() ([]string, error) { return n.removeStrayRoutes(ctx, want, inv) },
		func() ([]string, error) { return n.removeStrayLinks(ctx, names, inv) },
		func() ([]string, error) { return n.restorePods(ctx, want.Pods, inv) },
	} {
		did, err := part()
		repaired = append(repaired, did...)
		errs = append(errs, err)
	}
	n.podLinks.forget(before, names)
	return repaired, errors.Join(errs...)
}

// removeStrayRoutes removes routes of PodTable that no wanted, spared or live
// pod has.
func (n *Node) removeStrayRoutes(ctx context.Context, want Wanted, inv Inventory) (did []string, err error) {
	owner := map[netip.Addr][]string{}
	for _, p := range want.Pods {
		for _, a := range p.Addrs() {
			owner[a] = append(owner[a], p.HostIfName)
		}
	}
	var errs []error
	for _, r := range inv.Routes {
		if slices.Contains(owner[r.Addr], r.Link) || slices.Contains(want.Spare, r.Link) {
			continue
		}
		if IsHostLinkName(r.Link) {
			state, err := n.podLinks.acquire(ctx, r.Link)
			if err != nil {
				return did, errors.Join(append(errs, err)...)
			}
			if state == live {
				n.podLinks.release(r.Link)
				continue
			}
		}
		err := n.slow.RouteDel(podRoute(r.LinkIndex, r.Addr))
		if IsHostLinkName(r.Link) {
			n.podLinks.release(r.Link)
		}
		if err != nil && !rtnl.IsGone(err) {
			errs = append(errs, fmt.Errorf("remove route %s dev %s: %w", r.Addr, r.Link, err))
			continue
		}
		did = append(did, fmt.Sprintf("removed route %s dev %s", r.Addr, r.Link))
	}
	return did, errors.Join(errs...)
}

// removeStrayLinks removes pod links that are not wanted, and not live.
func (n *Node) removeStrayLinks(ctx context.Context, wanted map[string]bool, inv Inventory) (did []string, err error) {
	var stray []string
	for _, l := range inv.Links {
		if !wanted[l.Name] {
			stray = append(stray, l.Name)
		}
	}
	reaped, err := n.reap(ctx, stray)
	for _, name := range reaped {
		did = append(did, "removed link "+name)
	}
	return did, err
}

// restorePods puts back links, neighbours and routes of wanted pods.
func (n *Node) restorePods(ctx context.Context, pods []Pod, inv Inventory) (did []string, err error) {
	links := map[string]LinkInfo{}
	for _, l := range inv.Links {
		links[l.Name] = l
	}
	routes := map[netip.Addr]int{}
	for _, r := range inv.Routes {
		routes[r.Addr] = r.LinkIndex
	}
	neighbours, err := n.permanentNeighbours()
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, p := range pods {
		what, err := n.restorePod(ctx, p, links[p.HostIfName], routes, neighbours)
		if err != nil {
			errs = append(errs, fmt.Errorf("repair pod link %s: %w", p.HostIfName, err))
		} else if what != "" {
			did = append(did, what)
		}
	}
	return did, errors.Join(errs...)
}

// neighbourID is an address behind a link.
type neighbourID struct {
	link int
	addr netip.Addr
}

// permanentNeighbours are the MAC addresses of the node's permanent neighbours.
func (k *kernel) permanentNeighbours() (map[neighbourID]string, error) {
	macs := map[neighbourID]string{}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		list, err := rtnl.Whole(func() ([]netlink.Neigh, error) { return k.slow.NeighList(0, family) })
		if isNoFamily(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list %s neighbours: %w", familyName(family), err)
		}
		for _, e := range list {
			if addr, ok := netip.AddrFromSlice(e.IP); ok && e.State&netlink.NUD_PERMANENT != 0 {
				macs[neighbourID{e.LinkIndex, addr.Unmap()}] = e.HardwareAddr.String()
			}
		}
	}
	return macs, nil
}

// restoreLink gives a pod's link what somebody took from it that needs no look into the pod: by its MAC
// address the pod reaches the node, and the node the pod by its neighbour.
func (n *Node) restoreLink(p Pod, link LinkInfo, neighbours map[neighbourID]string) (did []string, err error) {
	ref := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: link.Index, Name: link.Name}}
	if p.HostMAC != nil && link.MAC != p.HostMAC.String() {
		if err := n.setMAC(ref, p.HostMAC); err != nil {
			return did, err
		}
		did = append(did, "MAC address")
		neighbours = nil // the kernel forgets those of a link whose MAC address changes
	}
	if p.MTU != 0 && link.MTU != p.MTU {
		if err := n.main.LinkSetMTU(ref, p.MTU); err != nil {
			return did, fmt.Errorf("give %s the MTU %d: %w", link.Name, p.MTU, err)
		}
		did = append(did, "MTU")
	}
	for _, addr := range p.Addrs() {
		if p.PodMAC == nil || neighbours[neighbourID{link.Index, addr}] == p.PodMAC.String() {
			continue
		}
		if err := n.main.NeighSet(neighbour(link.Index, addr, p.PodMAC)); err != nil {
			return did, fmt.Errorf("add neighbour %s to %s: %w", addr, link.Name, err)
		}
		did = append(did, "neighbour "+addr.String())
	}
	return did, nil
}

func (n *Node) restorePod(ctx context.Context, p Pod, link LinkInfo, routes map[netip.Addr]int, neighbours map[neighbourID]string) (did string, err error) {
	state, err := n.podLinks.acquire(ctx, p.HostIfName)
	if err != nil {
		return "", err
	}
	defer n.podLinks.release(p.HostIfName)
	if state == detached || n.podLinks.outdated(p) {
		return "", nil
	}
	whole := link.Index != 0 && link.Up
	for _, a := range p.Addrs() {
		whole = whole && routes[a] == link.Index
	}
	if whole {
		n.podLinks.set(p.HostIfName, live, p.wiring(link.Index, p.PodMAC))
		what, err := n.restoreLink(p, link, neighbours)
		if len(what) > 0 {
			did = strings.Join(what, ", ") + " of pod link " + p.HostIfName
		}
		return did, err
	}
	s, err := n.established()
	if err != nil {
		return "", err
	}
	links, err := n.addPod(ctx, p.complete(s.mtu), s.config.Sysctls)
	if err != nil {
		return "", err
	}
	n.podLinks.set(p.HostIfName, live, p.wiring(links.HostIndex, links.PodMAC))
	return "pod link " + p.HostIfName, nil
}
