package policytable

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/policy"
)

// sets are sets that change, and what changed since they were applied.
type sets struct {
	*policy.State
	changed policy.SetChanges
}

func newSets() *sets { return &sets{policy.NewState(), policy.SetChanges{}} }

func (s *sets) note(id policy.SetID, came bool, addrs ...netip.Addr) {
	for _, a := range addrs {
		one := policy.SetChanges{}
		one.Of(id).Note(policy.Element{Addr: a}, came)
		s.Take(&policy.Update{Version: 1, Sets: one})
		s.changed.Of(id).Note(policy.Element{Addr: a}, came)
	}
}

// from are addresses of a network that no host has.
func from(n int) (list []netip.Addr) {
	for i := range n {
		list = append(list, netip.AddrFrom4([4]byte{10, 200, byte(i >> 8), byte(i)}))
	}
	return list
}

// fifty are policies that accept connections from a set each, to two ports.
func fifty() (list []*policy.Policy) {
	for i := range 50 {
		p := &policy.Policy{Ref: policy.Ref{Namespace: "red", Name: fmt.Sprintf("p-%02d", i)}, Tier: policy.Namespaced, Isolates: [2]bool{true, false}}
		p.Rules[policy.Ingress] = []policy.Rule{{
			Peers: []policy.SetID{policy.SetID(fmt.Sprintf("pods-%d", i))},
			Ports: []policy.Ports{{Protocol: 6, First: 80, Last: 80}, {Protocol: 17, First: 53, Last: 53}},
		}}
		list = append(list, p)
	}
	return list
}

// However many policies select a pod, a first packet is looked up a few times. An address counts as long as one of the sets has
// it, also while a set grows until it is too large to be merged.
func TestPoliciesOfAPodAreMerged(t *testing.T) {
	pod, friend, stranger := pair("10.0.1.2", "fd00:1::2"), pair("10.0.2.2", "fd00:2::2"), pair("10.0.3.2", "fd00:3::2")
	w := newWorld(t, [][2]netip.Addr{pod, friend, stranger})
	table := New(w.node)
	policies := fifty()
	pods := []Pod{{Addrs: pod[:], Policies: policies}}
	s := newSets()
	s.note("pods-7", true, friend[:]...)
	apply := func() {
		t.Helper()
		must(t, table.Apply(pods, s.Elements, s.changed))
		s.changed = policy.SetChanges{}
	}
	update := func() {
		t.Helper()
		must(t, table.ApplyElements(s.Elements, s.changed))
		s.changed = policy.SetChanges{}
	}
	allows := func(when string, want bool) {
		t.Helper()
		must(t, rtnl.InNetns(w.node, func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }))
		var flows []policy.Flow
		for i := range pod {
			for _, from := range []netip.Addr{friend[i], stranger[i]} {
				for _, to := range []policy.Ports{{Protocol: 6, First: 80}, {Protocol: 6, First: 81}, {Protocol: 17, First: 53}, {Protocol: 17, First: 80}} {
					flows = append(flows, policy.Flow{Source: from, Destination: pod[i], Protocol: to.Protocol, Port: to.First})
				}
			}
		}
		for i, arrived := range w.arrivals(t, func(t fataler) uint64 { return refused(t, table) }, flows) {
			f := flows[i]
			if allowed := policy.Decide(policies, policy.Ingress, f, s).Allowed; arrived != allowed {
				t.Errorf("%s: %+v arrived: %t", when, f, arrived)
			} else if f.Source == friend[0] && f.Port == 53 && allowed != want {
				t.Errorf("%s: the friend is allowed: %t", when, allowed)
			}
		}
		var expected []Expected
		for _, p := range policies {
			id := p.Rules[policy.Ingress][0].Peers[0]
			for _, a := range friend {
				expected = append(expected, Expected{id, policy.Element{Addr: a}, s.Has(id, policy.Element{Addr: a})})
			}
		}
		if err := table.Compare(pod[:], expected); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	lookups := func() (rules, sets int) {
		for name, c := range table.have.flat().chains {
			if strings.HasPrefix(name, "tiers-") || strings.HasPrefix(name, "peers-") || strings.HasPrefix(name, "policy-") {
				rules += len(c.Rules)
			}
		}
		for _, s := range table.have.flat().sets {
			if len(s.ids) > 0 {
				sets++
			}
		}
		return rules, sets
	}
	apply()
	allows("at first", true)
	if rules, sets := lookups(); rules > 4 || sets > 2 { // ports, a set of each family, and the refusal
		t.Errorf("50 policies take %d rules and %d sets", rules, sets)
	}
	s.note("pods-8", true, friend[:]...)
	update()
	s.note("pods-7", false, friend[:]...)
	update()
	allows("in another set", true)
	s.note("pods-8", false, friend[:]...)
	s.note("pods-9", true, stranger[1])
	update()
	allows("in no set", false)
	s.note("pods-9", true, friend[0])
	s.note("pods-9", true, from(mostMerged)...)
	update()
	if _, sets := lookups(); sets > 2 {
		t.Errorf("%d sets while one grows a little", sets)
	}
	s.note("pods-9", true, from(mostGrown)...)
	if err := table.ApplyElements(s.Elements, s.changed); !errors.Is(err, ErrUnknown) {
		t.Errorf("a set that has become large stays in its union: %v", err)
	}
	allows("before the change", true)
	apply()
	if _, sets := lookups(); sets != 4 {
		t.Errorf("%d sets when one is large, want 4", sets)
	}
	allows("when a set is large", true)
	s.note("pods-9", false, friend[0])
	update()
	allows("at last", false)
	must(t, table.Remove())
}

// All unions together have a limit, and large policies keep a chain of their own, which pods share.
func TestMergingHasLimits(t *testing.T) {
	s := newSets()
	s.note("pods-1", true, from(10)...)
	s.note("pods-2", true, from(10)...)
	u := newUnions()
	u.begin(s.Elements)
	if name, merged, _ := u.split([]policy.SetID{"pods-1", "pods-2"}); name == "" || len(merged) != 2 {
		t.Errorf("union %q of %v", name, merged)
	}
	u.room = 10
	if name, _, alone := u.split([]policy.SetID{"pods-1", "pods-3", "pods-2"}); name != "" || len(alone) != 3 {
		t.Errorf("union %q beyond the limit, %v stay alone", name, alone)
	}
	if name, _, _ := u.split([]policy.SetID{"pods-2", "pods-1", "pods-2"}); name == "" {
		t.Error("a union that is there is not used")
	}
	large := &policy.Policy{Ref: policy.Ref{Namespace: "red", Name: "large"}, Tier: policy.Namespaced, Isolates: [2]bool{true, false}}
	for i := range mostParts {
		large.Rules[policy.Ingress] = append(large.Rules[policy.Ingress], policy.Rule{AnyPeer: true, Ports: []policy.Ports{{Protocol: unix.IPPROTO_TCP, First: uint16(2 * i), Last: uint16(2 * i)}}})
	}
	k := compiler{unions: newUnions()}
	k.unions.begin(s.Elements)
	c, err := k.content([]Pod{{Policies: append(fifty()[:2], large)}, {Policies: []*policy.Policy{large}}}, base{})
	must(t, err)
	jumps, chains := 0, 0
	for name, ch := range c.lists.chains {
		if strings.HasPrefix(name, "policy-") {
			chains++
		}
		for _, r := range ch.Rules {
			if r.Comment == large.String() {
				jumps++
			}
		}
	}
	if jumps != 2 || chains != 1 {
		t.Errorf("%d jumps to %d chains of policies, want 2 to 1", jumps, chains)
	}
	for i := range 50 {
		s.note(policy.SetID(fmt.Sprintf("pods-%d", i)), true, from(900)...)
	}
	var pods []Pod
	for i := range 40 { // which would take 1.8 million elements
		pods = append(pods, Pod{Policies: slices.Delete(fifty(), i, i+1)})
		for j, p := range pods[i].Policies {
			pods[i].Policies[j] = pods[0].Policies[max(0, slices.IndexFunc(pods[0].Policies, func(o *policy.Policy) bool { return o.Ref == p.Ref }))]
		}
	}
	k = compiler{unions: newUnions()}
	k.unions.begin(s.Elements)
	c, err = k.content(pods, base{})
	must(t, err)
	rules, elements := 0, 0
	for _, ch := range c.lists.chains {
		rules += len(ch.Rules)
	}
	for _, s := range c.lists.sets {
		if len(s.ids) > 1 && s.family == unix.AF_INET {
			elements += 900 * len(s.ids)
		}
	}
	if rules > 40*55+50*4+100 || elements == 0 || elements > mostInUnions {
		t.Errorf("lists with large unions take %d rules and %d elements of unions", rules, elements)
	}
}

// The kernel checks all that may follow an element that leads to a chain, so pods with policies that others have add none.
func TestPodsLeadToNoChains(t *testing.T) {
	chains := func(pods int) (n int) {
		var list []Pod
		for i := range pods {
			list = append(list, Pod{Addrs: from(pods)[i : i+1], Policies: fifty()})
		}
		for _, p := range list[1:] {
			copy(p.Policies, list[0].Policies)
		}
		u := newUnions()
		u.begin(newSets().Elements)
		k := compiler{unions: u}
		c, err := k.content(list, base{})
		must(t, err)
		for _, s := range c.flat().sets {
			if s.verdict != 0 {
				n += len(s.elements)
			}
		}
		return n
	}
	if one, many := chains(1), chains(250); one != many || one != 3 { // the pod's chain, and two ports
		t.Errorf("one pod leads to chains by %d elements, 250 by %d, want 3", one, many)
	}
}
