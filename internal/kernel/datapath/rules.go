package datapath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// routing reads and changes Berth's policy rules and routes on the node. It caches nothing.
type routing struct {
	nl *netlink.Handle
}

// routeKind describes Berth's routes other than those to pods. Adding a route replaces another one to the same
// destination.
func (t routing) routeKind() rtnl.Kind[netlink.Route, rtnl.Route] {
	return rtnl.Kind[netlink.Route, rtnl.Route]{
		Key: rtnl.RouteOf, Name: describeRoute,
		Add:    func(r netlink.Route) error { return t.nl.RouteReplace(&r) },
		Remove: func(r netlink.Route) error { return t.nl.RouteDel(&r) },
	}
}

func (t routing) ruleKind() rtnl.Kind[netlink.Rule, rtnl.Rule] {
	return rtnl.Kind[netlink.Rule, rtnl.Rule]{
		Key: rtnl.RuleOf, Name: func(r netlink.Rule) string { return describeRule(r) + " rule" },
		Add:    t.addRule,
		Remove: func(r netlink.Rule) error { return t.nl.RuleDel(&r) },
	}
}

// addRule adds a rule. The kernel refuses a rule that differs from another one only in its protocol, such as that of
// the Amazon VPC CNI for its connection mark. This one replaces it, and a third rule takes its place meanwhile.
func (t routing) addRule(r netlink.Rule) error {
	err := t.nl.RuleAdd(&r)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	meanwhile, other := r, r
	meanwhile.Priority--
	other.Protocol = unix.RTPROT_UNSPEC // any
	if err := t.nl.RuleAdd(&meanwhile); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	err = t.nl.RuleDel(&other)
	if err == nil || rtnl.IsGone(err) {
		err = t.nl.RuleAdd(&r)
	}
	return errors.Join(err, t.nl.RuleDel(&meanwhile))
}

// list lists Berth's routes of one table, or of all (RT_TABLE_UNSPEC).
func (t routing) list(family, table int) ([]netlink.Route, error) {
	routes, err := rtnl.Whole(func() ([]netlink.Route, error) {
		return t.nl.RouteListFiltered(family, &netlink.Route{Table: table, Protocol: Protocol},
			netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	})
	if isNoFamily(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %s routes of table %d: %w", familyName(family), table, err)
	}
	return routes, nil
}

// listThat lists Berth's routes in one table, or in all (RT_TABLE_UNSPEC), of both families, for which holds returns true.
func (t routing) listThat(table int, holds func(netlink.Route) bool) (list []netlink.Route, err error) {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := t.list(family, table)
		if err != nil {
			return nil, err
		}
		list = append(list, slices.DeleteFunc(routes, func(r netlink.Route) bool { return !holds(r) })...)
	}
	return list, nil
}

// remove removes routes, and continues after an error.
func (t routing) remove(routes []netlink.Route) ([]string, error) {
	return t.routeKind().RemoveAll(routes)
}

// removeThat removes Berth's routes in a table, or in all (RT_TABLE_UNSPEC), for which holds returns true.
func (t routing) removeThat(table int, holds func(netlink.Route) bool) ([]string, error) {
	have, err := t.listThat(table, holds)
	if err != nil {
		return nil, err
	}
	return t.remove(have)
}

// setTable makes the routes of Berth in a table exactly these. It removes stale routes first, and adds missing ones
// even if that fails, as pods need them.
func (t routing) setTable(table int, desired []netlink.Route) (changed []string, err error) {
	have, err := t.listThat(table, func(netlink.Route) bool { return true })
	if err != nil {
		return nil, err
	}
	d := t.routeKind().Compare(desired, have)
	changed, err = t.remove(d.Extra)
	added, fails := t.routeKind().Set(d)
	return append(changed, added...), errors.Join(err, fails)
}

func describeRoute(r netlink.Route) string {
	if isUnreachable(r) {
		return fmt.Sprintf("unreachable route %s", rtnl.RouteDst(r))
	}
	return fmt.Sprintf("route %s of table %d", rtnl.RouteDst(r), r.Table)
}

// nodeRules are the policy rules that do not depend on ENIs.
func nodeRules(u Uplinks) []netlink.Rule {
	var rules []netlink.Rule
	for _, family := range families(u) {
		rules = append(append(rules, policyRule(family, RulePod, PodTable, 0, 0)), u.rules(family)...)
	}
	return rules
}

func policyRule(family, priority, table int, mark, mask uint32) netlink.Rule {
	r := netlink.NewRule()
	r.Family, r.Priority, r.Table, r.Protocol = family, priority, table, Protocol
	if mask != 0 {
		r.Mark, r.Mask = mark, &mask
	}
	return *r
}

func isUplinkRule(number int) func(netlink.Rule) bool {
	return func(r netlink.Rule) bool {
		return r.Priority == RuleUplink && r.Table == UplinkTableBase+number
	}
}

// setRules makes Berth's rules that owned selects exactly the desired ones. It adds before it removes, so that every
// packet matches a rule.
func (t routing) setRules(owned func(netlink.Rule) bool, desired []netlink.Rule) (changed []string, err error) {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		have, err := t.listRules(family)
		if err != nil {
			return changed, err
		}
		d := t.ruleKind().Compare(slices.DeleteFunc(slices.Clone(desired), func(r netlink.Rule) bool { return r.Family != family }), have)
		added, err := t.ruleKind().Set(d)
		changed = append(changed, added...)
		if err != nil {
			return changed, err
		}
		removed, err := t.ruleKind().RemoveAll(slices.DeleteFunc(d.Extra, func(r netlink.Rule) bool { return !owned(r) }))
		changed = append(changed, removed...)
		if err != nil {
			return changed, err
		}
	}
	return changed, nil
}

// listRules lists the rules that carry Berth's protocol number; none if the kernel lacks the family.
func (t routing) listRules(family int) ([]netlink.Rule, error) {
	all, err := rtnl.Whole(func() ([]netlink.Rule, error) { return t.nl.RuleList(family) })
	if isNoFamily(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %s rules: %w", familyName(family), err)
	}
	return slices.DeleteFunc(all, func(r netlink.Rule) bool { return r.Protocol != Protocol || r.Family != family }), nil
}

func describeRule(r netlink.Rule) string {
	s := fmt.Sprintf("%s %d", familyName(r.Family), r.Priority)
	if r.Src != nil {
		s += " from " + rtnl.PrefixOf(r.Src).String()
	}
	if r.Mask != nil && *r.Mask != 0 {
		s += fmt.Sprintf(" fwmark %#x/%#x", r.Mark, *r.Mask)
	}
	return s + fmt.Sprintf(" table %d", r.Table)
}

// PodRules describes Berth's policy rules in the kernel that apply to packets from and to these addresses of a pod:
// for each family of the addresses, IPv4 first, by priority. uplink is the number of the pod's uplink; 0 is the
// primary one, whose pods use the main table.
func (n *Node) PodRules(ctx context.Context, uplink int, addrs []netip.Addr) ([]string, error) {
	if err := n.begin(ctx); err != nil {
		return nil, err
	}
	out := []string{}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		if !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return rtnl.FamilyOf(a) == family }) {
			continue
		}
		rules, err := n.routing.listRules(family)
		if err != nil {
			return nil, fmt.Errorf("rules of pods of uplink %d: %w", uplink, err)
		}
		rules = slices.DeleteFunc(rules, func(r netlink.Rule) bool {
			return r.Priority == RuleUplink && (r.Src != nil || !isUplinkRule(uplink)(r))
		})
		slices.SortStableFunc(rules, func(a, b netlink.Rule) int { return cmp.Compare(a.Priority, b.Priority) })
		for _, r := range rules {
			out = append(out, describeRule(r))
		}
	}
	return out, nil
}
