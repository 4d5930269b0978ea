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

// rules manages the policy rules of branches in the node's namespace. One call at a time changes
// them, because branches share some.
type rules struct {
	nl    *netlink.Handle
	marks marks
	turn  plug.Turns
}

// marks is how far the data path shifts its marks left.
type marks uint

// of shifts a value of the bits datapath.MarkUplink.
func (m marks) of(value uint32) (mark, mask uint32) { return value << m, datapath.MarkUplink << m }

func rule(family, priority, table int) netlink.Rule {
	r := netlink.NewRule()
	r.Family, r.Priority, r.Table, r.Protocol = family, priority, table, rtnl.Protocol
	return *r
}

func (s *rules) marked(r netlink.Rule, value uint32) netlink.Rule {
	mark, mask := s.marks.of(value)
	r.Mark, r.Mask = mark, &mask
	return r
}

// shared are the rules that all branches of a mode need, in the order of creation: no rule
// redirects packets before the last one exists.
func (s *rules) shared(family int, mode plug.Enforcing) []netlink.Rule {
	rule := func(priority, table int) netlink.Rule { return rule(family, priority, table) }
	if mode == plug.Standard {
		return []netlink.Rule{rule(datapath.RuleBranchPod, datapath.StandardTable)}
	}
	none := s.marked(rule(datapath.RuleBranchNone, 0), datapath.BranchOut)
	none.Type = unix.RTN_PROHIBIT
	past := s.marked(rule(datapath.RuleBranchPast, 0), datapath.BranchAny)
	past.Mask = &past.Mark
	past.Invert, past.Goto = true, datapath.RuleLocal
	source := s.marked(rule(datapath.RuleBranchSource, datapath.StrictTable), datapath.BranchOut)
	source.IifName = "lo"
	return []netlink.Rule{
		localRule(family, datapath.RuleLocal), none, past, source,
		s.marked(rule(datapath.RuleBranchIn, datapath.StrictTable), datapath.BranchIn),
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
func (s *rules) own(b branch, family int) []netlink.Rule {
	priority := datapath.RuleBranchStandard
	if b.enforcing == plug.Strict {
		priority = datapath.RuleBranchOut
	}
	out := rule(family, priority, b.ownTable())
	out.IifName = b.pod
	if b.enforcing != plug.Strict || family != unix.AF_INET {
		return []netlink.Rule{out}
	}
	back := s.marked(rule(family, priority, datapath.StrictTable), datapath.BranchOut)
	back.IifName = b.vlan
	return []netlink.Rule{out, back}
}

// isOf reports whether a rule belongs to the branch of a port, by the names of its links.
func isOf(h netlink.Rule, r plug.Ref) bool {
	return h.Protocol == rtnl.Protocol && (h.IifName == LinkName(r) || h.IifName == r.VLANLink())
}

// modesOf returns the modes of the branches that have rules in a family.
func modesOf(have []netlink.Rule) map[plug.Enforcing]bool {
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

// ruleKey identifies a rule: it sends the same packets to the same place, and is Berth's or not. Listed rules do not
// include the action "prohibit", but such rules have no table.
type ruleKey struct {
	rtnl.Rule
	berths bool
}

func keyOf(r netlink.Rule) ruleKey { return ruleKey{rtnl.RuleOf(r), r.Protocol == rtnl.Protocol} }

func (s *rules) kind() rtnl.Kind[netlink.Rule, ruleKey] {
	return rtnl.Kind[netlink.Rule, ruleKey]{
		Key: keyOf, Name: netlink.Rule.String,
		Add: func(r netlink.Rule) error {
			if err := s.nl.RuleAdd(&r); !errors.Is(err, unix.EEXIST) {
				return err
			}
			return nil
		},
		Remove: func(r netlink.Rule) error { return s.nl.RuleDel(&r) },
	}
}

// set ensures the rules of a branch and removes its rules for an earlier VLAN or mode.
func (s *rules) set(ctx context.Context, b branch, r plug.Ref) error {
	for _, h := range b.hops {
		family := h.family()
		err := s.change(ctx, family, func(have []netlink.Rule) error {
			own := s.own(b, family)
			if err := s.ensure(have, append(s.shared(family, b.enforcing), own...)...); err != nil {
				return err
			}
			if err := s.removeOthers(have, r, own); err != nil {
				return err
			}
			if b.enforcing == plug.Strict {
				return s.removeLike(have, localRule(family, 0))
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// clear removes the rules of a port, and the shared rules if it was the last of its mode.
func (s *rules) clear(ctx context.Context, r plug.Ref) error {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		if err := s.change(ctx, family, func(have []netlink.Rule) error { return s.removeOthers(have, r, nil) }); err != nil {
			return err
		}
	}
	return nil
}

// change calls do with the rules of a family while no other call changes them. Then it removes
// shared rules that no branch needs any more.
func (s *rules) change(ctx context.Context, family int, do func(have []netlink.Rule) error) error {
	done, err := s.turn.Take(ctx, "the rules")
	if err != nil {
		return err
	}
	defer done()
	have, err := s.list(family)
	if err != nil {
		return err
	}
	if err := do(have); err != nil {
		return err
	}
	if have, err = s.list(family); err != nil {
		return err
	}
	return s.removeShared(family, have)
}

// removeOthers removes the rules of a port that are not in want.
func (s *rules) removeOthers(have []netlink.Rule, r plug.Ref, want []netlink.Rule) error {
	extra := s.kind().Compare(want, have).Extra
	_, err := s.kind().RemoveAll(slices.DeleteFunc(extra, func(h netlink.Rule) bool { return !isOf(h, r) }))
	return err
}

// removeShared removes shared rules that no branch needs any more. It first restores the kernel's
// rule for local addresses.
func (s *rules) removeShared(family int, have []netlink.Rule) error {
	of := modesOf(have)
	if !of[plug.Strict] && has(have, localRule(family, datapath.RuleLocal)) {
		if err := s.ensure(have, localRule(family, 0)); err != nil {
			return err
		}
	}
	for _, mode := range []plug.Enforcing{plug.Strict, plug.Standard} {
		if of[mode] {
			continue
		}
		for _, r := range slices.Backward(s.shared(family, mode)) {
			if err := s.removeLike(have, r); err != nil {
				return err
			}
		}
	}
	return nil
}

// list lists the rules of a family; none if the kernel lacks the family.
func (s *rules) list(family int) ([]netlink.Rule, error) {
	list, err := rtnl.Whole(func() ([]netlink.Rule, error) { return s.nl.RuleList(family) })
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list rules: %w", err)
	}
	return list, nil
}

// ensure adds rules that are missing, in order.
func (s *rules) ensure(have []netlink.Rule, want ...netlink.Rule) error {
	_, err := s.kind().Set(s.kind().Compare(want, have))
	return err
}

// removeLike removes the rules that equal r.
func (s *rules) removeLike(have []netlink.Rule, r netlink.Rule) error {
	_, err := s.kind().RemoveAll(slices.DeleteFunc(slices.Clone(have), func(h netlink.Rule) bool { return keyOf(h) != keyOf(r) }))
	return err
}

func has(have []netlink.Rule, r netlink.Rule) bool {
	return slices.ContainsFunc(have, func(h netlink.Rule) bool { return keyOf(h) == keyOf(r) })
}

// check adds missing rules to the differences.
func (s *rules) check(b branch, found *plug.Differences) error {
	for _, h := range b.hops {
		have, err := s.list(h.family())
		if err != nil {
			return err
		}
		for _, r := range s.kind().Compare(append(s.shared(h.family(), b.enforcing), s.own(b, h.family())...), have).Missing {
			found.Add("the node lacks the %s policy rule %d of %s branches", ipfamily.Of(h.addr), r.Priority, b.enforcing)
		}
		if b.enforcing == plug.Strict && has(have, localRule(h.family(), 0)) {
			found.Add("the %s policy rule 0 looks up the node's local addresses before the rules of %s", ipfamily.Of(h.addr), b.pod)
		}
	}
	return nil
}
