package datapath

import (
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A VPC delivers packets for every address of an ENI, whether a pod has it or not: it
// may be kept warm, cool, or have lost its pod a moment ago. Without a route of its own
// such a packet would take the node's default route, back to the VPC, which drops it
// since its source is none of this node's: who sent it waits in vain, and the drop looks
// like a forged source. So each has an unreachable route in PodTable, behind that of a
// pod, and the sender hears at once that nobody is there (RFC 1812, 5.2.7.1).

// unusedMetric is that of these routes, by which they are told from those of blocks.
const unusedMetric = blockMetric + 1

func unusedRoute(p netip.Prefix) netlink.Route {
	r := unreachableRoute(p)
	r.Priority = unusedMetric
	return r
}

func isUnusedRoute(r netlink.Route) bool {
	return r.Table == PodTable && isUnreachable(r) && r.Priority == unusedMetric
}

// assigned tells whether an address or prefix is one that pods of the ENI may have.
func (e Uplink) assigned(p netip.Prefix) bool {
	return slices.Contains(e.Prefixes, p) || p.IsSingleIP() && slices.Contains(e.Addresses, p.Addr())
}

// listUnusedRoutes lists them all, whichever daemon made them.
func (k *kernel) listUnusedRoutes() ([]netlink.Route, error) {
	var all []netlink.Route
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := k.listRoutes(k.slow, family, PodTable)
		if err != nil {
			return nil, err
		}
		all = append(all, slices.DeleteFunc(routes, func(r netlink.Route) bool { return !isUnusedRoute(r) })...)
	}
	return all, nil
}

// setUnusedRoutes adds the routes of an ENI's addresses that are missing.
func (k *kernel) setUnusedRoutes(uplink Uplink, u VPC) (changed []string, err error) {
	have, err := k.listUnusedRoutes()
	if err != nil {
		return nil, err
	}
	var want []netlink.Route
	for p := range uplink.entries() {
		if p.Addr().Is4() || u.ipv6() {
			want = append(want, unusedRoute(p))
		}
	}
	missing, _ := diff(want, have, routeDst)
	for _, r := range missing {
		if err := k.slow.RouteReplace(&r); err != nil {
			return changed, err
		}
		changed = append(changed, describeRoute(r))
	}
	return changed, nil
}

// removeUnusedRoutes removes those of addresses that no known ENI has, and that of which
// may says so.
func (n *Node) removeUnusedRoutes(may func(netip.Prefix) bool) (changed []string, err error) {
	have, err := n.listUnusedRoutes()
	if err != nil {
		return nil, err
	}
	return n.removeRoutes(slices.DeleteFunc(have, func(r netlink.Route) bool {
		return !may(routeDst(r)) || n.isAssigned(routeDst(r))
	}))
}

// isAssigned tells whether a known ENI has an address or prefix for pods.
func (n *Node) isAssigned(p netip.Prefix) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.uplinks {
		if e.assigned(p) {
			return true
		}
	}
	return false
}

func everyPrefix(netip.Prefix) bool { return true }
