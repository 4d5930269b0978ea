package routedvlan

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/datapath"
	"github.com/berthnet/berth/internal/datapath/rtnl"
	"github.com/berthnet/berth/internal/plug"
)

// Policy rules are of IPv4: so are branches.

// mark is a value of the bits datapath.MarkUplink.
func (p *Plugger) mark(value uint32) (mark, mask uint32) {
	return value << p.shift, datapath.MarkUplink << p.shift
}

func rule(priority, table int) netlink.Rule {
	r := netlink.NewRule()
	r.Family, r.Priority, r.Table, r.Protocol = unix.AF_INET, priority, table, rtnl.Protocol
	return *r
}

func (p *Plugger) marked(r netlink.Rule, value uint32) netlink.Rule {
	mark, mask := p.mark(value)
	r.Mark, r.Mask = mark, &mask
	return r
}

// shared are the rules that all branches of a mode need, in the order in which they are made: until
// the last of them is there, none takes a packet from where it went before.
func (p *Plugger) shared(mode plug.Enforcing) []netlink.Rule {
	if mode == plug.Standard {
		return []netlink.Rule{rule(datapath.RuleBranchPod, datapath.StandardTable)}
	}
	none := p.marked(rule(datapath.RuleBranchNone, 0), datapath.BranchOut)
	none.Type = unix.RTN_PROHIBIT
	skip := p.marked(rule(datapath.RuleBranchSkip, 0), datapath.BranchOut)
	skip.Invert, skip.Goto = true, datapath.RuleLocal
	source := p.marked(rule(datapath.RuleBranchSource, datapath.StrictTable), datapath.BranchOut)
	source.IifName = "lo"
	return []netlink.Rule{
		localRule(datapath.RuleLocal), none, skip, source,
		p.marked(rule(datapath.RuleBranchIn, datapath.StrictTable), datapath.BranchIn),
	}
}

// localRule looks up the node's own addresses, as the kernel has it with priority 0. It carries the
// kernel's mark, so that nobody who takes away what is Berth's takes it away.
func localRule(priority int) netlink.Rule {
	r := rule(priority, unix.RT_TABLE_LOCAL)
	r.Protocol = unix.RTPROT_KERNEL
	return r
}

// own is the rule of one branch.
func (b branch) own() netlink.Rule {
	priority := datapath.RuleBranchStandard
	if b.enforcing == plug.Strict {
		priority = datapath.RuleBranchOut
	}
	r := rule(priority, b.ownTable())
	r.IifName = b.pod
	return r
}

// lead makes the rules of a branch, and removes those that it had by another VLAN or mode.
func (p *Plugger) lead(ctx context.Context, b branch) error {
	done, err := p.turns.Take(ctx, "the rules")
	if err != nil {
		return err
	}
	defer done()
	have, err := p.rules()
	if err != nil {
		return err
	}
	for _, r := range append(p.shared(b.enforcing), b.own()) {
		if err := p.ensure(have, r); err != nil {
			return err
		}
	}
	for _, h := range have {
		if isOwn(h, b.pod) && !same(h, b.own()) {
			if err := p.remove(h); err != nil {
				return err
			}
		}
	}
	if b.enforcing == plug.Strict {
		return p.removeLike(have, localRule(0))
	}
	return nil
}

// leadNoMore removes the rule of a port, and what no other of its mode needs.
func (p *Plugger) leadNoMore(ctx context.Context, r plug.Ref) error {
	done, err := p.turns.Take(ctx, "the rules")
	if err != nil {
		return err
	}
	defer done()
	have, err := p.rules()
	if err != nil {
		return err
	}
	for _, h := range have {
		if isOwn(h, LinkName(r)) {
			if err := p.remove(h); err != nil {
				return err
			}
		}
	}
	for mode, priority := range map[plug.Enforcing]int{plug.Strict: datapath.RuleBranchOut, plug.Standard: datapath.RuleBranchStandard} {
		if slices.ContainsFunc(have, func(h netlink.Rule) bool {
			return h.Priority == priority && h.Protocol == rtnl.Protocol && !isOwn(h, LinkName(r))
		}) {
			continue
		}
		if err := p.shareNoMore(have, mode); err != nil {
			return err
		}
	}
	return nil
}

// shareNoMore removes the rules that all branches of a mode share, and puts the kernel's own rule of local
// addresses back in its place first.
func (p *Plugger) shareNoMore(have []netlink.Rule, mode plug.Enforcing) error {
	all := p.shared(mode)
	if mode == plug.Strict && slices.ContainsFunc(have, func(h netlink.Rule) bool { return same(h, localRule(datapath.RuleLocal)) }) {
		if err := p.ensure(have, localRule(0)); err != nil {
			return err
		}
	}
	for _, r := range slices.Backward(all) {
		if err := p.removeLike(have, r); err != nil {
			return err
		}
	}
	return nil
}

// isOwn tells the rules that lead from a pod by its veth's name.
func isOwn(r netlink.Rule, pod string) bool {
	return r.Protocol == rtnl.Protocol && r.IifName == pod
}

func (p *Plugger) rules() ([]netlink.Rule, error) {
	list, err := rtnl.Whole(func() ([]netlink.Rule, error) { return p.node.NL.RuleList(unix.AF_INET) })
	if err != nil {
		return nil, fmt.Errorf("list rules: %w", err)
	}
	return list, nil
}

func (p *Plugger) ensure(have []netlink.Rule, r netlink.Rule) error {
	if slices.ContainsFunc(have, func(h netlink.Rule) bool { return same(h, r) }) {
		return nil
	}
	if err := p.node.NL.RuleAdd(&r); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add %s: %w", r, err)
	}
	return nil
}

// removeLike removes the rules that are as one is.
func (p *Plugger) removeLike(have []netlink.Rule, r netlink.Rule) error {
	for _, h := range have {
		if same(h, r) {
			if err := p.remove(h); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *Plugger) remove(r netlink.Rule) error {
	if err := p.node.NL.RuleDel(&r); err != nil && !rtnl.IsGone(err) {
		return fmt.Errorf("remove %s: %w", r, err)
	}
	return nil
}

// same tells whether two rules take the same packets to the same place. Those that the kernel made
// itself have no mark of whoever made them before Linux 4.17.
func same(a, b netlink.Rule) bool {
	type identity struct {
		priority, table, to int
		mark, mask          uint32
		iif                 string
		invert, prohibits   bool
		ours                bool
		further             bool
	}
	of := func(r netlink.Rule) identity {
		i := identity{
			priority: max(r.Priority, 0), mark: r.Mark, iif: r.IifName, invert: r.Invert, prohibits: r.Type == unix.RTN_PROHIBIT,
			ours: r.Protocol == rtnl.Protocol, further: r.Src != nil || r.Dst != nil || r.OifName != "",
		}
		if r.Mask != nil {
			i.mask = *r.Mask
		}
		if r.Goto > 0 {
			i.to = r.Goto
		} else if !i.prohibits {
			i.table = r.Table
		}
		return i
	}
	return of(a) == of(b)
}

// checkRules notes which rules are missing.
func (p *Plugger) checkRules(b branch, found *plug.Differences) error {
	have, err := p.rules()
	if err != nil {
		return err
	}
	for _, r := range append(p.shared(b.enforcing), b.own()) {
		if !slices.ContainsFunc(have, func(h netlink.Rule) bool { return same(h, r) }) {
			found.Add("the node lacks the policy rule %d of %s branches", r.Priority, b.enforcing)
		}
	}
	if b.enforcing == plug.Strict && slices.ContainsFunc(have, func(h netlink.Rule) bool { return same(h, localRule(0)) }) {
		found.Add("the node's own addresses are looked up before %s leads to its VLAN (policy rule 0)", b.pod)
	}
	return nil
}
