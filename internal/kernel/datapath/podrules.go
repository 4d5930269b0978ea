package datapath

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// PodRules describes those of Berth's policy rules, as the kernel has them, that
// packets to and from these addresses of a pod of an uplink meet: of each family that
// the addresses are of, IPv4 first, by priority. uplink 0 is the primary one, whose
// pods' packets leave by the main table.
func (n *Node) PodRules(ctx context.Context, uplink int, addrs []netip.Addr) ([]string, error) {
	if err := n.begin(ctx); err != nil {
		return nil, err
	}
	out := []string{}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		if !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return rtnl.FamilyOf(a) == family }) {
			continue
		}
		rules, err := n.listRules(family)
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
