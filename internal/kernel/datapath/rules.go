package datapath

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

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

// setRules makes Berth's rules among those that mine selects be exactly want:
// adds first, then removes, so that no packet meets a gap.
func (k *kernel) setRules(mine func(netlink.Rule) bool, want []netlink.Rule) (changed []string, err error) {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		have, err := k.listRules(family)
		if err != nil {
			return changed, err
		}
		kept := map[int]bool{}
		for _, w := range want {
			if w.Family != family {
				continue
			}
			if i := indexRule(have, w, kept); i >= 0 {
				kept[i] = true
				continue
			}
			if err := k.slow.RuleAdd(&w); err != nil {
				return changed, fmt.Errorf("add %s rule: %w", describeRule(w), err)
			}
			changed = append(changed, describeRule(w)+" rule")
		}
		for i, h := range have {
			if kept[i] || !mine(h) {
				continue
			}
			if err := k.slow.RuleDel(&h); err != nil && !rtnl.IsGone(err) {
				return changed, fmt.Errorf("remove %s rule: %w", describeRule(h), err)
			}
			changed = append(changed, "removed "+describeRule(h)+" rule")
		}
	}
	return changed, nil
}

func indexRule(have []netlink.Rule, w netlink.Rule, kept map[int]bool) int {
	for i, h := range have {
		if !kept[i] && ruleKey(h) == ruleKey(w) {
			return i
		}
	}
	return -1
}

type ruleIdentity struct {
	family, priority, table int
	mark, mask              uint32
	from                    netip.Prefix // of an ENI's own address
	selective               bool
}

// ruleKey is what makes two of Berth's rules the same. A rule with a selector
// that Berth never uses is none of its wanted ones.
func ruleKey(r netlink.Rule) ruleIdentity {
	k := ruleIdentity{family: r.Family, priority: r.Priority, table: r.Table, mark: r.Mark,
		selective: r.Dst != nil || r.IifName != "" || r.OifName != "" || r.Invert}
	if r.Mask != nil {
		k.mask = *r.Mask
	}
	if r.Src != nil {
		k.from = ruleSource(r)
	}
	return k
}

func ruleSource(r netlink.Rule) netip.Prefix {
	a, _ := netip.AddrFromSlice(r.Src.IP)
	bits, _ := r.Src.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), bits)
}

// listRules lists the rules that carry Berth's protocol number. A kernel
// without IPv6 has none of IPv6.
func (k *kernel) listRules(family int) ([]netlink.Rule, error) {
	all, err := rtnl.Whole(func() ([]netlink.Rule, error) { return k.slow.RuleList(family) })
	if isNoFamily(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %s rules: %w", familyName(family), err)
	}
	var ours []netlink.Rule
	for _, r := range all {
		if r.Protocol == Protocol && r.Family == family {
			ours = append(ours, r)
		}
	}
	return ours, nil
}

func describeRule(r netlink.Rule) string {
	s := fmt.Sprintf("%s %d", familyName(r.Family), r.Priority)
	if r.Src != nil {
		s += " from " + ruleSource(r).String()
	}
	if r.Mask != nil && *r.Mask != 0 {
		s += fmt.Sprintf(" fwmark %#x/%#x", r.Mark, *r.Mask)
	}
	return s + fmt.Sprintf(" table %d", r.Table)
}
