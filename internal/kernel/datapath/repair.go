package datapath

import (
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

// Desired is the desired state of a node.
type Desired struct {
	Config Config
	Supply Supply // must match Config.Uplinks; nil: none
	Pods   []Pod
	// Spare names pod links that may be in use although their pods are unknown. Repair keeps them and their routes.
	Spare []string
}

// Repair compares the desired state with the kernel, restores what is missing, and removes other objects of Berth's.
// It returns what it changed, and writes nothing if there is no difference. It does not change what other software
// made.
// It runs after events of Watch and when the daemon starts, when it also informs the Node about existing pods. The
// desired state may be slightly stale: Repair does not restore a pod that was detached since, does not remove one
// that was added since, and does not restore earlier addresses of a pod. It compares only the node's side of pods;
// CheckPod compares both. It continues after a sysctl that cannot be set, an ENI without a link and a pod without a
// namespace, and joins the errors.
func (n *Node) Repair(ctx context.Context, want Desired) (repaired []string, err error) {
	if err := n.begin(ctx); err != nil {
		return nil, err
	}
	r := &repair{node: n, desired: want, names: map[string]bool{}}
	for _, p := range want.Pods {
		if err := p.Validate(); err != nil {
			return nil, fmt.Errorf("repair: pod %s: %w", p.HostIfName, err)
		}
		r.names[p.HostIfName] = true
	}
	for _, name := range want.Spare {
		r.names[name] = true
	}
	n.setupMu.Lock()
	defer n.setupMu.Unlock()
	before := n.podLinks.detachedLinks()

	var errs []error
	if repaired, err = (&setup{node: n, config: want.Config}).run(); err != nil {
		errs = append(errs, fmt.Errorf("repair: %w", err))
		if !errors.Is(err, errSysctl) || n.set.Load() == nil {
			return repaired, errs[0]
		}
	}
	carriers := want.Supply
	if carriers == nil {
		carriers = want.Config.Uplinks.none()
	}
	did, err := carriers.restore(n)
	repaired, errs = append(repaired, did...), append(errs, err)
	if r.observed, err = n.Inventory(ctx); err != nil {
		return repaired, errors.Join(append(errs, fmt.Errorf("repair: %w", err))...)
	}
	for _, part := range []func() ([]string, error){
		func() ([]string, error) { return carriers.tidy(n, r.observed) },
		func() ([]string, error) { return r.removeStrayRoutes(ctx) },
		func() ([]string, error) { return r.removeStrayLinks(ctx) },
		func() ([]string, error) { return r.restorePods(ctx) },
	} {
		did, err := part()
		repaired = append(repaired, did...)
		errs = append(errs, err)
	}
	n.podLinks.forget(before, r.names)
	return repaired, errors.Join(errs...)
}

// repair is one call of Repair.
type repair struct {
	node     *Node
	desired  Desired
	names    map[string]bool // names of pod links that are desired or spared
	observed Inventory
}

// removeStrayRoutes removes routes of PodTable that belong to no desired, spared or live pod.
func (r *repair) removeStrayRoutes(ctx context.Context) (did []string, err error) {
	n, owner := r.node, map[netip.Addr][]string{}
	for _, p := range r.desired.Pods {
		for _, a := range p.Addrs() {
			owner[a] = append(owner[a], p.HostIfName)
		}
	}
	var errs []error
	for _, route := range r.observed.Routes {
		if route.Link == "" && route.LinkIndex != 0 { // the link is gone, with the route, or was added after links were listed
			link, err := n.slow.LinkByIndex(route.LinkIndex)
			if rtnl.IsNoLink(err) {
				continue
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("remove route %s: %w", route.Addr, err))
				continue
			}
			route.Link = link.Attrs().Name
		}
		if slices.Contains(owner[route.Addr], route.Link) || slices.Contains(r.desired.Spare, route.Link) {
			continue
		}
		removed, err := r.removeStrayRoute(ctx, route)
		if err != nil {
			errs = append(errs, fmt.Errorf("remove route %s dev %s: %w", route.Addr, route.Link, err))
		}
		if !removed {
			continue
		}
		did = append(did, fmt.Sprintf("removed route %s dev %s", route.Addr, route.Link))
	}
	return did, errors.Join(errs...)
}

// removeStrayRoute removes a route, unless a pod that was added meanwhile has it.
func (r *repair) removeStrayRoute(ctx context.Context, route RouteInfo) (removed bool, err error) {
	n := r.node
	if IsHostLinkName(route.Link) {
		state, err := n.podLinks.acquire(ctx, route.Link)
		if err != nil {
			return false, err
		}
		defer n.podLinks.release(route.Link)
		if state == live {
			return false, nil
		}
	}
	err = n.slow.RouteDel(podRoute(route.LinkIndex, route.Addr))
	if rtnl.IsGone(err) {
		err = nil
	}
	return err == nil, err
}

// removeStrayLinks removes pod links that are neither desired nor live.
func (r *repair) removeStrayLinks(ctx context.Context) (did []string, err error) {
	var stray []string
	for _, l := range r.observed.Links {
		if !r.names[l.Name] {
			stray = append(stray, l.Name)
		}
	}
	reaped, err := r.node.reaper.reap(ctx, stray)
	for _, name := range reaped {
		did = append(did, "removed link "+name)
	}
	return did, err
}

// restorePods restores links, neighbours and routes of desired pods.
func (r *repair) restorePods(ctx context.Context) (did []string, err error) {
	links := map[string]LinkInfo{}
	for _, l := range r.observed.Links {
		links[l.Name] = l
	}
	routes := map[netip.Addr]int{}
	for _, route := range r.observed.Routes {
		routes[route.Addr] = route.LinkIndex
	}
	neighbours := map[int][]netlink.Neigh{} // by link index
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		list, err := rtnl.PermanentNeighbours(r.node.slow, 0, family)
		if err != nil && !isNoFamily(err) {
			return nil, fmt.Errorf("list %s neighbours: %w", familyName(family), err)
		}
		for _, e := range list {
			neighbours[e.LinkIndex] = append(neighbours[e.LinkIndex], e)
		}
	}
	var errs []error
	for _, p := range r.desired.Pods {
		link := links[p.HostIfName]
		what, err := r.restorePod(ctx, p, link, routes, neighbours[link.Index])
		if err != nil {
			errs = append(errs, fmt.Errorf("repair pod link %s: %w", p.HostIfName, err))
		} else if what != "" {
			did = append(did, what)
		}
	}
	return did, errors.Join(errs...)
}

// restoreLink restores changed settings of the node's end of a pod's link: the MAC address, by which the pod reaches
// the node, the MTU, and the neighbour entry, by which the node reaches the pod.
func (r *repair) restoreLink(p Pod, link LinkInfo, neighbours []netlink.Neigh) (did []string, err error) {
	mac, err := net.ParseMAC(link.MAC)
	if err != nil {
		return nil, fmt.Errorf("MAC address of %s: %w", link.Name, err)
	}
	have := &netlink.LinkAttrs{Index: link.Index, HardwareAddr: mac, MTU: link.MTU}
	did, err = p.hostLink().Set(r.node.main, have)
	if err != nil || p.PodMAC == nil {
		return did, err
	}
	if slices.Contains(did, "MAC address") {
		neighbours = nil // the kernel drops the neighbour entries of a link when its MAC address changes
	}
	var desired []netlink.Neigh
	for _, addr := range p.Addrs() {
		desired = append(desired, *rtnl.PermanentNeighbour(link.Index, addr, p.PodMAC))
	}
	kind := neighbourKind(r.node.main)
	added, err := kind.Set(kind.Compare(desired, neighbours))
	return append(did, added...), err
}

func (r *repair) restorePod(ctx context.Context, p Pod, link LinkInfo, routes map[netip.Addr]int, neighbours []netlink.Neigh) (did string, err error) {
	n := r.node
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
		what, err := r.restoreLink(p, link, neighbours)
		if len(what) > 0 {
			did = strings.Join(what, ", ") + " of pod link " + p.HostIfName
		}
		return did, err
	}
	s, err := n.established()
	if err != nil {
		return "", err
	}
	links, err := n.addPod(ctx, p.complete(s.mtu), s.config.Sysctls, nil)
	if err != nil {
		return "", err
	}
	n.podLinks.set(p.HostIfName, live, p.wiring(links.HostIndex, links.PodMAC))
	return "pod link " + p.HostIfName, nil
}
