package datapath

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// PodRules describes those of Berth's policy rules, as the kernel has them, that
// packets to and from pods of an uplink meet, by priority. uplink 0 is the
// primary one, whose pods' packets leave by the main table.
func (n *Node) PodRules(ctx context.Context, uplink int, ipv6 bool) ([]string, error) {
	if err := n.begin(ctx); err != nil {
		return nil, err
	}
	family := unix.AF_INET
	if ipv6 {
		family = unix.AF_INET6
	}
	rules, err := n.listRules(family)
	if err != nil {
		return nil, fmt.Errorf("rules of pods of uplink %d: %w", uplink, err)
	}
	rules = slices.DeleteFunc(rules, func(r netlink.Rule) bool {
		return r.Priority == RuleUplink && !isUplinkRule(uplink)(r)
	})
	slices.SortStableFunc(rules, func(a, b netlink.Rule) int { return cmp.Compare(a.Priority, b.Priority) })
	out := make([]string, 0, len(rules))
	for _, r := range rules {
		out = append(out, describeRule(r))
	}
	return out, nil
}
