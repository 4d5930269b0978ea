package egressclient

import (
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/kernel/tunnel"
)

// setTunnels makes devices and FoU ports, and returns the device's index for each family.
func (k *kernel) setTunnels(was state, p plan) (map[int]int, error) {
	devices := map[int]int{}
	for _, t := range p.tunnels {
		err := k.do("make the tunnel from "+t.Local.String(), func() error {
			ensure := tunnel.Ensure
			if was.fresh() {
				ensure = tunnel.Make
			}
			index, err := ensure(k.at.NL, t)
			devices[rtnl.FamilyOf(t.Local)] = index
			return err
		})
		if err != nil {
			return nil, err
		}
		if t.Local.Is4() {
			if err := k.setSource(was, t, devices[unix.AF_INET]); err != nil {
				return nil, err
			}
		}
	}
	return devices, nil
}

// setSource makes reverse path filtering of the IPv4 device loose (RFC 3704), as ICMP errors come from routers to
// which the pod has other routes. The kernel accepts packets loosely only on a link with an address, so the device
// gets the pod's own.
func (k *kernel) setSource(was state, t tunnel.Tunnel, device int) error {
	l, _ := was.links[unix.AF_INET].(*netlink.Iptun)
	if l == nil || rtnl.AddrOf(l.Local) != t.Local || l.Attrs().Index != device || !was.numbered {
		err := k.do("give "+t.Link()+" the address "+t.Local.String(), func() error {
			return k.at.NL.AddrReplace(rtnl.LinkRef(device), &netlink.Addr{IPNet: rtnl.IPNet(rtnl.HostPrefix(t.Local)), Flags: unix.IFA_F_NOPREFIXROUTE})
		})
		if err != nil {
			return err
		}
	}
	if was.loose && l != nil && l.Attrs().Index == device {
		return nil
	}
	return k.do("set reverse path filtering of "+t.Link(), func() error { return k.at.SetIPv4Setting(device, tunnel.RPFilter, looseFilter) })
}

// removeTunnels removes the devices of families that no longer have a tunnel.
func (k *kernel) removeTunnels(was state, p plan) error {
	families := slices.DeleteFunc(slices.Clone(tunnel.Families), func(f int) bool { return p.has(f) || was.links[f] == nil })
	if len(families) == 0 {
		return nil
	}
	return k.removeDevices(families)
}

func (k *kernel) removeDevices(families []int) error {
	return k.do("remove the tunnels' devices", func() error { return k.at.RemoveDevices(families...) })
}

func (p plan) has(family int) bool {
	return slices.ContainsFunc(p.tunnels, func(t tunnel.Tunnel) bool { return rtnl.FamilyOf(t.Local) == family })
}

// removePorts removes a FoU port (0: none), except of families with a tunnel that has it.
func (k *kernel) removePorts(port uint16, p plan) error {
	for _, f := range tunnel.Families {
		if port == 0 || slices.ContainsFunc(p.tunnels, func(t tunnel.Tunnel) bool { return rtnl.FamilyOf(t.Local) == f && t.Port == port }) {
			continue
		}
		what := fmt.Sprintf("remove the FoU port %d of IPv%d", port, tunnel.Digit(f))
		if err := k.do(what, func() error { return tunnel.RemovePort(k.at.NL, f, port) }); err != nil {
			return err
		}
	}
	return nil
}

// routeKind describes the routes of this package's tables. A route with another next hop is replaced in one step.
func (k *kernel) routeKind() rtnl.Kind[linkedRoute, routeKey] {
	return rtnl.Kind[linkedRoute, routeKey]{
		Key: func(h linkedRoute) routeKey { return h.routeKey },
		Same: func(desired, observed linkedRoute) bool {
			return desired.route == observed.route && (desired.link == observed.link || !desired.via.IsValid())
		},
		Name:   func(h linkedRoute) string { return h.String() },
		Add:    func(h linkedRoute) error { return k.at.NL.RouteReplace(h.toKernel()) },
		Remove: func(h linkedRoute) error { return k.at.NL.RouteDel(h.toKernel()) },
		Do:     k.do,
	}
}

// ruleKind describes the policy rules of this package's priorities.
func (k *kernel) ruleKind() rtnl.Kind[rtnl.Rule, rtnl.Rule] {
	kind := rtnl.RuleKind(k.at.NL)
	kind.Do = k.do
	return kind
}

// desired are the routes of a plan, given the index of each family's device. The unreachable fallback of a new
// destination comes last.
func (p plan) desired(devices map[int]int) []linkedRoute {
	var list []linkedRoute
	for _, r := range p.routes {
		h := linkedRoute{route: r}
		if r.via.IsValid() {
			h.link = devices[r.family()]
		}
		list = append(list, h)
	}
	slices.SortStableFunc(list, func(a, b linkedRoute) int { return a.metric - b.metric })
	return list
}

func ofGateway(h linkedRoute) bool { return h.table > tableGateways }

// setRoutes sets missing and differing routes: those of gateways' tables, or the others.
func (k *kernel) setRoutes(was state, p plan, devices map[int]int, gateways bool) error {
	routes := slices.DeleteFunc(p.desired(devices), func(h linkedRoute) bool { return ofGateway(h) != gateways })
	_, err := k.routeKind().Set(k.routeKind().Compare(routes, was.routes))
	return err
}

// removeRoutes removes routes that the plan does not have, the unreachable fallbacks first.
func (k *kernel) removeRoutes(was state, p plan) error {
	extra := k.routeKind().Compare(p.desired(nil), was.routes).Extra
	slices.SortStableFunc(extra, func(a, b linkedRoute) int { return b.metric - a.metric })
	return removeInOrder(k.routeKind(), extra)
}

// removeInOrder removes objects and stops at the first error: objects later in the list are exceptions from earlier
// ones, and must exist as long as these.
func removeInOrder[T any, K comparable](kind rtnl.Kind[T, K], extra []T) error {
	for i := range extra {
		if _, err := kind.RemoveAll(extra[i : i+1]); err != nil {
			return err
		}
	}
	return nil
}

func (r route) String() string {
	if !r.via.IsValid() {
		return fmt.Sprintf("route unreachable %s in table %d", r.dst, r.table)
	}
	return fmt.Sprintf("route %s via %s in table %d", r.dst, r.via, r.table)
}

func (h linkedRoute) toKernel() *netlink.Route {
	n := &netlink.Route{
		Family: h.family(), Dst: rtnl.IPNet(h.dst), Table: h.table, Priority: h.metric, Protocol: rtnl.Protocol,
	}
	if !h.via.IsValid() {
		n.Type = unix.RTN_UNREACHABLE
		return n
	}
	n.LinkIndex, n.Gw, n.Src, n.Flags = h.link, h.via.AsSlice(), h.src.AsSlice(), int(netlink.FLAG_ONLINK)
	return n
}

func ifThere(err error) error {
	if rtnl.IsGone(err) {
		return nil
	}
	return err
}

// addRules adds missing rules in order of priority.
func (k *kernel) addRules(was state, p plan) error {
	_, err := k.ruleKind().Set(k.ruleKind().Compare(p.rules, was.rules))
	return err
}

// removeRules removes rules that the plan does not have, in reverse order.
func (k *kernel) removeRules(was state, p plan) error {
	extra := k.ruleKind().Compare(p.rules, was.rules).Extra
	slices.SortStableFunc(extra, func(a, b rtnl.Rule) int { return b.Priority - a.Priority })
	return removeInOrder(k.ruleKind(), extra)
}

// clear removes everything of Berth's egress. The kernel waits for RCU in each removal of a FoU port and of devices, so these
// begin at once and run beside the rest. A destination without its device is unreachable until its rules are removed. The
// nftables table is removed last, because it has the FoU port of an earlier Setup. keepPort leaves FoU ports as they are.
func (k *kernel) clear(port uint16, keepPort bool) error {
	if keepPort {
		port = 0
	}
	var was state
	var group errgroup.Group
	group.Go(func() error { return k.removePorts(port, plan{}) })
	group.Go(func() error { return k.removeDevices(tunnel.Families) })
	group.Go(func() (err error) {
		if was, err = k.lookTables(); err != nil {
			return err
		}
		if err := k.removeRules(was, plan{}); err != nil {
			return err
		}
		return k.removeRoutes(was, plan{})
	})
	if err := group.Wait(); err != nil {
		return err
	}
	if was.port != port && !keepPort {
		if err := k.removePorts(was.port, plan{}); err != nil {
			return err
		}
	}
	if err := k.revert(was.loosened, loosened{}); err != nil || was.filter == "" {
		return err
	}
	return k.removeFilter()
}
