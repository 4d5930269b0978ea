package egressclient

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/kernel/tunnel"
)

func addressOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// setTunnels makes devices and ports, and tells each family's index.
func (k *kernel) setTunnels(was state, p plan) (map[int]int, error) {
	devices := map[int]int{}
	for _, t := range p.tunnels {
		err := k.do("make the tunnel from "+t.Local.String(), func() error {
			ensure := tunnel.Ensure
			if was.fresh() {
				ensure = tunnel.Make
			}
			index, err := ensure(k.nl, t)
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

// setSource lets the device of IPv4 take packets from whichever source, as ICMP errors come from
// routers to which the pod has another way: reverse path filtering is loose (RFC 3704), which the
// kernel heeds for a link that has an address only, hence the pod's own.
func (k *kernel) setSource(was state, t tunnel.Tunnel, device int) error {
	l, _ := was.links[unix.AF_INET].(*netlink.Iptun)
	if l == nil || addressOf(l.Local) != t.Local || l.Attrs().Index != device || !was.numbered {
		err := k.do("give "+t.Link()+" the address "+t.Local.String(), func() error {
			return k.nl.AddrReplace(rtnl.LinkRef(device), &netlink.Addr{IPNet: rtnl.IPNet(rtnl.HostPrefix(t.Local)), Flags: unix.IFA_F_NOPREFIXROUTE})
		})
		if err != nil {
			return err
		}
	}
	if was.loose && l != nil && l.Attrs().Index == device {
		return nil
	}
	return k.do("set reverse path filtering of "+t.Link(), func() error { return k.setPathFilter(device, looseFilter) })
}

// removeTunnels removes device and port of families that have none any more.
func (k *kernel) removeTunnels(was state, p plan) error {
	for _, f := range bothFamilies {
		if p.has(f) || was.links[f] == nil && was.port == 0 {
			continue
		}
		if err := k.do("remove "+linkOf(f), func() error { return tunnel.Remove(k.nl, noGateway(f), was.port) }); err != nil {
			return err
		}
	}
	return nil
}

func (p plan) has(family int) bool {
	return slices.ContainsFunc(p.tunnels, func(t tunnel.Tunnel) bool { return rtnl.FamilyOf(t.Local) == family })
}

// removePort removes the port of before, when it is another now.
func (k *kernel) removePort(was state, p plan) error {
	for _, t := range p.tunnels {
		if was.port == 0 || was.port == t.Port {
			continue
		}
		old := netlink.Fou{Family: rtnl.FamilyOf(t.Local), Port: int(was.port)}
		err := k.do(fmt.Sprintf("remove the FoU port %d", was.port), func() error { return ifThere(k.nl.FouDel(old)) })
		if err != nil {
			return err
		}
	}
	return nil
}

func ofGateways(r route) bool     { return r.table > tableGateways }
func ofDestinations(r route) bool { return !ofGateways(r) }

// addRoutes puts those routes in place that are of a kind. One that leads elsewhere is replaced in
// one step; of a destination that is new, what is beneath comes last.
func (k *kernel) addRoutes(was state, p plan, devices map[int]int, kind func(route) bool) error {
	list := slices.DeleteFunc(slices.Clone(p.routes), func(r route) bool { return !kind(r) })
	slices.SortStableFunc(list, func(a, b route) int { return a.metric - b.metric })
	for _, r := range list {
		link := 0
		if r.via.IsValid() {
			link = devices[r.family()]
		}
		if h, ok := was.routes[r.place]; ok && h.route == r && (h.link == link || !r.via.IsValid()) {
			continue
		}
		if err := k.do("set "+r.String(), func() error { return k.nl.RouteReplace(r.toKernel(link)) }); err != nil {
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

func (r route) toKernel(link int) *netlink.Route {
	n := &netlink.Route{
		Family: r.family(), Dst: rtnl.IPNet(r.dst), Table: r.table, Priority: r.metric, Protocol: rtnl.Protocol,
	}
	if !r.via.IsValid() {
		n.Type = unix.RTN_UNREACHABLE
		return n
	}
	n.LinkIndex, n.Gw, n.Src, n.Flags = link, r.via.AsSlice(), r.src.AsSlice(), int(netlink.FLAG_ONLINK)
	return n
}

// removeRoutes removes those that are not wanted. What is beneath goes first: there is always
// one until the last.
func (k *kernel) removeRoutes(was state, wanted []route) error {
	keep := map[place]bool{}
	for _, r := range wanted {
		keep[r.place] = true
	}
	list := slices.SortedFunc(maps.Keys(was.routes), func(a, b place) int { return b.metric - a.metric })
	for _, p := range list {
		if keep[p] {
			continue
		}
		h := was.routes[p]
		err := k.do("remove "+h.String(), func() error { return ifThere(k.nl.RouteDel(h.toKernel(h.link))) })
		if err != nil {
			return err
		}
	}
	return nil
}

func ifThere(err error) error {
	if rtnl.IsGone(err) {
		return nil
	}
	return err
}

// addRules adds those that lack, the last first: a table that is looked up before another has
// its exceptions by then.
func (k *kernel) addRules(was state, p plan) error {
	for _, r := range p.rules {
		if was.rules[r] {
			continue
		}
		err := k.do("add "+r.String(), func() error {
			if err := k.nl.RuleAdd(r.toKernel()); !errors.Is(err, unix.EEXIST) {
				return err
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (k *kernel) removeRules(was state, wanted []rule) error {
	keep := map[rule]bool{}
	for _, r := range wanted {
		keep[r] = true
	}
	for _, r := range slices.SortedFunc(maps.Keys(was.rules), func(a, b rule) int { return b.priority - a.priority }) {
		if keep[r] {
			continue
		}
		if err := k.do("remove "+r.String(), func() error { return ifThere(k.nl.RuleDel(r.toKernel())) }); err != nil {
			return err
		}
	}
	return nil
}

func (r rule) String() string {
	s := fmt.Sprintf("rule %d", r.priority)
	if r.from.IsValid() {
		s += " from " + r.from.String()
	}
	if r.to.IsValid() {
		s += " to " + r.to.String()
	}
	if r.by != "" {
		s += " oif " + r.by
	}
	if r.mask != 0 {
		s += fmt.Sprintf(" fwmark %#x/%#x", r.mark, r.mask)
	}
	switch {
	case r.leap != 0:
		return fmt.Sprintf("%s goto %d", s, r.leap)
	case r.table != 0:
		return fmt.Sprintf("%s lookup %d", s, r.table)
	}
	return s + " nop"
}

// nop is FR_ACT_NOP (linux/fib_rules.h).
const nop = 3

func (r rule) toKernel() *netlink.Rule {
	n := netlink.NewRule()
	n.Family, n.Priority, n.Table, n.Protocol, n.OifName = r.family, r.priority, r.table, rtnl.Protocol, r.by
	if r.from.IsValid() {
		n.Src = rtnl.IPNet(r.from)
	}
	if r.to.IsValid() {
		n.Dst = rtnl.IPNet(r.to)
	}
	if r.mask != 0 {
		n.Mark, n.Mask = r.mark, &r.mask
	}
	switch {
	case r.leap != 0:
		n.Goto = r.leap
	case r.table == 0:
		n.Type = nop
	}
	return n
}

// ruleOf reads a rule of the kernel's.
func ruleOf(family int, n netlink.Rule) rule {
	r := rule{family: family, priority: n.Priority, from: prefixOf(n.Src), to: prefixOf(n.Dst), by: n.OifName, table: max(n.Table, 0), leap: max(n.Goto, 0)}
	if n.Mask != nil {
		r.mark, r.mask = n.Mark, *n.Mask
	}
	return r
}

func prefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(addressOf(n.IP), bits)
}

// clear removes all; what else is in the namespace is as if it had never been there.
func (k *kernel) clear(was state) error {
	if was.fresh() {
		return nil
	}
	if err := k.removeRules(was, nil); err != nil {
		return err
	}
	if err := k.removeRoutes(was, nil); err != nil {
		return err
	}
	if err := k.removeTunnels(was, plan{}); err != nil {
		return err
	}
	if err := k.takeBack(was.loosened, loosened{}); err != nil {
		return err
	}
	return k.removeFilter()
}

// undo removes what an Apply made that could not go on.
func (k *kernel) undo() error {
	was, err := k.look()
	if err != nil {
		return err
	}
	return k.clear(was)
}
