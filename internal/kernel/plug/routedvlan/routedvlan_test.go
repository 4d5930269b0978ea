package routedvlan

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/plug"
)

// Tests that need a kernel with VLANs are in the files with the build tag guest.

func branchFor(mode plug.Enforcing, id int) branch {
	return branch{
		pod: "bth0123456789a", vlan: "vl0123456789a", id: id, enforcing: mode,
		hops: []hop{
			{netip.MustParseAddr("10.0.64.7"), netip.MustParseAddr("10.0.64.1")},
			{netip.MustParseAddr("2001:db8::7"), netip.MustParseAddr("fe80:ec2::1")},
		},
	}
}

// families are the IP families of policy rules.
var families = []int{unix.AF_INET, unix.AF_INET6}

// Marks use only the six bits of the ENI's number, even when shifted. The rules of strict branches precede all others,
// so that no other rule matches their packets first.
func TestRules(t *testing.T) {
	for _, shift := range []uint{0, 8, 24} {
		p := &rules{marks: marks(shift)}
		for _, mode := range []plug.Enforcing{plug.Strict, plug.Standard} {
			for _, family := range families {
				for _, r := range append(p.shared(family, mode), p.own(branchFor(mode, 7), family)...) {
					if r.Family != family {
						t.Errorf("rule %s has family %d, want %d", r, r.Family, family)
					}
					if r.Mask != nil && *r.Mask&^(datapath.MarkUplink<<shift) != 0 {
						t.Errorf("rule %s has mask %#x, want bits of the ENI's number only", r, *r.Mask)
					}
					if mode == plug.Strict && r.Priority > datapath.RuleLocal {
						t.Errorf("rule %s is behind the rule for local addresses", r)
					}
				}
			}
		}
	}
}

// Rules with different selectors or actions differ, also from rules of other software.
func TestRuleKeys(t *testing.T) {
	p := &rules{}
	const family = unix.AF_INET
	all := append(append(p.shared(family, plug.Strict), p.shared(family, plug.Standard)...), localRule(family, 0))
	for _, mode := range []plug.Enforcing{plug.Strict, plug.Standard} {
		for _, id := range []int{7, 8} {
			all = append(all, p.own(branchFor(mode, id), family)...)
		}
	}
	foreign := p.own(branchFor(plug.Strict, 7), family)[0]
	foreign.Protocol = 0
	all = append(all, foreign)
	for i, a := range all {
		for j, b := range all {
			// Rules for a VLAN link do not depend on the VLAN ID.
			alike := i == j || a.IifName == "vl0123456789a" && b.IifName == "vl0123456789a"
			if (keyOf(a) == keyOf(b)) != alike {
				t.Errorf("rules %s (iif %q) and %s (iif %q): same key = %v", a, a.IifName, b, b.IifName, !alike)
			}
		}
	}
}

// modesOf derives the modes from the rules of branches.
func TestModesOf(t *testing.T) {
	p := &rules{}
	for _, family := range families {
		strict, standard := p.own(branchFor(plug.Strict, 7), family), p.own(branchFor(plug.Standard, 8), family)
		foreign := standard[0]
		foreign.Protocol = 0
		for want, have := range map[string][]netlink.Rule{
			"map[]":                          append(p.shared(family, plug.Strict), foreign, localRule(family, 0)),
			"map[strict:true]":               strict,
			"map[standard:true]":             standard,
			"map[standard:true strict:true]": slices.Concat(strict, standard),
		} {
			if got := fmt.Sprint(modesOf(have)); got != want {
				t.Errorf("modesOf() for family %d = %s, want %s", family, got, want)
			}
		}
	}
}

// Each branch of a node has a routing table of its own, different from those of the data path.
func TestTables(t *testing.T) {
	seen := map[int]bool{datapath.PodTable: true, datapath.StrictTable: true, datapath.StandardTable: true}
	for i := 1; i <= datapath.MaxUplink; i++ {
		seen[datapath.UplinkTableBase+i] = true
	}
	for id := 1; id <= 4094; id++ {
		table := branchFor(plug.Strict, id).ownTable()
		if seen[table] {
			t.Errorf("table %d of VLAN %d is used twice", table, id)
		}
		seen[table] = true
	}
}

// The tag of a chain depends on its content: address, mode and VLAN.
func TestTags(t *testing.T) {
	seen := map[string]string{}
	other, other6, alone, alone6 := branchFor(plug.Strict, 7), branchFor(plug.Strict, 7), branchFor(plug.Strict, 7), branchFor(plug.Strict, 7)
	other.hops[0].addr = netip.MustParseAddr("10.0.64.8")
	other6.hops[1].addr = netip.MustParseAddr("2001:db8::8")
	alone.hops, alone6.hops = alone.hops[:1], alone6.hops[1:]
	for what, b := range map[string]branch{
		"strict": branchFor(plug.Strict, 7), "VLAN 8": branchFor(plug.Strict, 8), "standard": branchFor(plug.Standard, 7),
		"another address": other, "another IPv6 address": other6, "IPv4 only": alone, "IPv6 alone": alone6,
	} {
		all := ""
		for _, c := range (&filter{}).chains(b) {
			content, err := c.content()
			if err != nil {
				t.Fatal(err)
			}
			all += content.Tag + " "
		}
		if seen[all] != "" {
			t.Errorf("%s and %s have the same tags %s", seen[all], what, all)
		}
		seen[all] = what
	}
}
