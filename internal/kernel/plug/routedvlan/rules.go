package routedvlan

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Policy rules belong to one IP family. A branch has rules for the families of its addresses. Calls
// about the rules of all branches cover both families.

// mark shifts a value of the bits datapath.MarkUplink.
func (p *Plugger) mark(value uint32) (mark, mask uint32) {
	return value << p.shift, datapath.MarkUplink << p.shift
}

func rule(family, priority, table int) netlink.Rule {
	r := netlink.NewRule()
	r.Family, r.Priority, r.Table, r.Protocol = family, priority, table, rtnl.Protocol
	return *r
}

func (p *Plugger) marked(r netlink.Rule, value uint32) netlink.Rule {
	mark, mask := p.mark(value)
	r.Mark, r.Mask = mark, &mask
	return r
}

// shared are the rules that all branches of a mode need, in the order of creation: no rule
// redirects packets before the last one exists.
func (p *Plugger) shared(family int, mode plug.Enforcing) []netlink.Rule {
	rule := func(priority, table int) netlink.Rule { return rule(family, priority, table) }
	if mode == plug.Standard {
		return []netlink.Rule{rule(datapath.RuleBranchPod, datapath.StandardTable)}
	}
	none := p.marked(rule(datapath.RuleBranchNone, 0), datapath.BranchOut)
	none.Type = unix.RTN_PROHIBIT
	past := p.marked(rule(datapath.RuleBranchPast, 0), datapath.BranchAny)
	past.Mask = &past.Mark
	past.Invert, past.Goto = true, datapath.RuleLocal
	source := p.marked(rule(datapath.RuleBranchSource, datapath.StrictTable), datapath.BranchOut)
	source.IifName = "lo"
	return []netlink.Rule{
		localRule(family, datapath.RuleLocal), none, past, source,
		p.marked(rule(datapath.RuleBranchIn, datapath.StrictTable), datapath.BranchIn),
	}
}

// localRule is the kernel's rule for the node's local addresses, which has priority 0 by default.
// It keeps the kernel's protocol number, so that a cleanup of Berth's rules does not remove it.
func localRule(family, priority int) netlink.Rule {
	r := rule(family, priority, unix.RT_TABLE_LOCAL)
	r.Protocol = unix.RTPROT_KERNEL
	return r
}

// own are the rules of one branch for a family. The first one routes the packets of the pod.
//
// In mode strict, IPv4 has one more for reverse path filtering (rp_filter): the kernel looks up the
// route back to the source before it forwards a packet. For packets from the VLAN, the first rule
// leads back to the VLAN for every source, which may be the node or another pod on it. For packets
// from the pod, the second rule leads back to the pod's veth. Forwarded packets never match it.
func (p *Plugger) own(b branch, family int) []netlink.Rule {
	priority := datapath.RuleBranchStandard
	if b.enforcing == plug.Strict {
		priority = datapath.RuleBranchOut
	}
	out := rule(family, priority, b.ownTable())
	out.IifName = b.pod
	if b.enforcing != plug.Strict || family != unix.AF_INET {
		return []netlink.Rule{out}
	}
	back := p.marked(rule(family, priority, datapath.StrictTable), datapath.BranchOut)
	back.IifName = b.vlan
	return []netlink.Rule{out, back}
}

// isOwn reports whether a rule belongs to the branch of a port, by the names of its links.
func isOwn(h netlink.Rule, r plug.Ref) bool {
	return h.Protocol == rtnl.Protocol && (h.IifName == LinkName(r) || h.IifName == r.VLANLink())
}

// present returns the modes of the branches that have rules in a family.
func present(have []netlink.Rule) map[plug.Enforcing]bool {
	of := map[plug.Enforcing]bool{}
	for _, h := range have {
		switch {
		case h.Protocol != rtnl.Protocol:
		case h.Priority == datapath.RuleBranchOut:
			of[plug.Strict] = true
		case h.Priority == datapath.RuleBranchStandard:
			of[plug.Standard] = true
		}
	}
	return of
}

// lead ensures the rules of a branch and removes its rules for an earlier VLAN or mode.
func (p *Plugger) lead(ctx context.Context, b branch, r plug.Ref) error {
	for _, h := range b.hops {
		family := h.family()
		err := p.change(ctx, family, func(have []netlink.Rule) error {
			for _, r := range append(p.shared(family, b.enforcing), p.own(b, family)...) {
				if err := p.ensure(have, r); err != nil {
					return err
				}
			}
			if err := p.unlead(have, r, p.own(b, family)); err != nil {
				return err
			}
			if b.enforcing == plug.Strict {
				return p.removeLike(have, localRule(family, 0))
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// leadNoMore removes the rules of a port, and the shared rules if it was the last of its mode.
func (p *Plugger) leadNoMore(ctx context.Context, r plug.Ref) error {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		if err := p.change(ctx, family, func(have []netlink.Rule) error { return p.unlead(have, r, nil) }); err != nil {
			return err
		}
	}
	return nil
}

// change calls do with the rules of a family while no other call changes them. Then it removes
// shared rules that no branch needs any more.
func (p *Plugger) change(ctx context.Context, family int, do func(have []netlink.Rule) error) error {
	done, err := p.turns.Take(ctx, "the rules")
	if err != nil {
		return err
	}
	defer done()
	have, err := p.rules(family)
	if err != nil {
		return err
	}
	if err := do(have); err != nil {
		return err
	}
	if have, err = p.rules(family); err != nil {
		return err
	}
	return p.shareNoMore(family, have)
}

// unlead removes the rules of a port that are not in want.
func (p *Plugger) unlead(have []netlink.Rule, r plug.Ref, want []netlink.Rule) error {
	for _, h := range have {
		if !isOwn(h, r) || slices.ContainsFunc(want, func(w netlink.Rule) bool { return same(h, w) }) {
			continue
		}
		if err := p.remove(h); err != nil {
			return err
		}
	}
	return nil
}

// shareNoMore removes shared rules that no branch needs any more. It first restores the kernel's
// rule for local addresses.
func (p *Plugger) shareNoMore(family int, have []netlink.Rule) error {
	of := present(have)
	moved := slices.ContainsFunc(have, func(h netlink.Rule) bool { return same(h, localRule(family, datapath.RuleLocal)) })
	if !of[plug.Strict] && moved {
		if err := p.ensure(have, localRule(family, 0)); err != nil {
			return err
		}
	}
	for _, mode := range []plug.Enforcing{plug.Strict, plug.Standard} {
		if of[mode] {
			continue
		}
		for _, r := range slices.Backward(p.shared(family, mode)) {
			if err := p.removeLike(have, r); err != nil {
				return err
			}
		}
	}
	return nil
}

// rules lists the rules of a family; none if the kernel lacks the family.
func (p *Plugger) rules(family int) ([]netlink.Rule, error) {
	list, err := rtnl.Whole(func() ([]netlink.Rule, error) { return p.node.NL.RuleList(family) })
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, nil
	}
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

// removeLike removes the rules that equal r.
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

// same reports whether two rules send the same packets to the same place. Listed rules do not
// include the action "prohibit", but such rules have no table.
func same(a, b netlink.Rule) bool {
	type identity struct {
		priority, table, to int
		mark, mask          uint32
		iif                 string
		invert              bool
		ours                bool
		further             bool
	}
	of := func(r netlink.Rule) identity {
		i := identity{
			priority: max(r.Priority, 0), mark: r.Mark, iif: r.IifName, invert: r.Invert,
			ours: r.Protocol == rtnl.Protocol, further: r.Src != nil || r.Dst != nil || r.OifName != "",
		}
		if r.Mask != nil {
			i.mask = *r.Mask
		}
		if r.Goto > 0 {
			i.to = r.Goto
		} else {
			i.table = r.Table
		}
		return i
	}
	return of(a) == of(b)
}

// checkRules adds missing rules to the differences.
func (p *Plugger) checkRules(b branch, found *plug.Differences) error {
	for _, h := range b.hops {
		have, err := p.rules(h.family())
		if err != nil {
			return err
		}
		has := func(want netlink.Rule) bool {
			return slices.ContainsFunc(have, func(h netlink.Rule) bool { return same(h, want) })
		}
		for _, r := range append(p.shared(h.family(), b.enforcing), p.own(b, h.family())...) {
			if !has(r) {
				found.Add("the node lacks the %s policy rule %d of %s branches", ipfamily.Of(h.addr), r.Priority, b.enforcing)
			}
		}
		if b.enforcing == plug.Strict && has(localRule(h.family(), 0)) {
			found.Add("the %s policy rule 0 looks up the node's local addresses before the rules of %s", ipfamily.Of(h.addr), b.pod)
		}
	}
	return nil
}
