package eni

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
)

// An address belongs to one ENI, and an ENI keeps its MAC and primary address for life. A description that
// contradicts this is wrong or partly outdated: a disputed address stays with the ENI known to have it and is
// not used on any other until descriptions agree.

// assignment is an address or prefix of an ENI, as listed by EC2.
type assignment struct {
	prefix  netip.Prefix
	eni     string
	primary bool // the ENI's own address
}

// assignments returns the assignments of all ENIs, sorted by address, a prefix before its addresses.
func assignments(enis []facts) []assignment {
	n := len(enis)
	for _, e := range enis {
		n += len(e.held)
	}
	out := make([]assignment, 0, n)
	for _, e := range enis {
		if e.Primary.IsValid() {
			out = append(out, assignment{cloud.HostPrefix(e.Primary), e.ID, true})
		}
		for _, p := range e.held {
			out = append(out, assignment{p, e.ID, false})
		}
	}
	slices.SortFunc(out, func(x, y assignment) int {
		if c := cloud.ComparePrefixes(x.prefix, y.prefix); c != 0 {
			return c
		}
		return cmp.Compare(x.eni, y.eni)
	})
	return out
}

// dispute is an assignment that is not used because other ENIs are listed with the same address or prefix.
type dispute struct {
	assignment
	among []string // all ENIs listed with it
}

// disputes returns the addresses and prefixes listed for several ENIs, or twice for one. Before is the previous
// knowledge of the ENIs. An ENI's own primary address takes precedence, then the ENI that had the address
// before. Otherwise no assignment is used.
func disputes(before, now []facts) []dispute {
	var out []dispute
	all := assignments(now)
	for i := 0; i < len(all); {
		j := i + 1
		for j < len(all) && all[i].prefix.Overlaps(all[j].prefix) {
			j++
		}
		if group := all[i:j]; len(group) > 1 {
			out = append(out, losers(before, group)...)
		}
		i = j
	}
	return out
}

// losers returns the assignments of a group that are not used: all except the winner, if there is one, and
// primary addresses.
func losers(before []facts, group []assignment) []dispute {
	known := func(a assignment) bool {
		return slices.ContainsFunc(before, func(e facts) bool { return e.ID == a.eni && slices.Contains(e.held, a.prefix) })
	}
	stands := slices.IndexFunc(group, func(a assignment) bool { return a.primary })
	if stands < 0 {
		stands = slices.IndexFunc(group, known)
	}
	var among []string
	for _, a := range group {
		among = append(among, a.eni)
	}
	var out []dispute
	for i, a := range group {
		if i != stands && !a.primary {
			out = append(out, dispute{a, among})
		}
	}
	return out
}

// doubles returns the ENIs that share their MAC, primary address or device index with another ENI, except the
// one that had it before.
func doubles(before, now []facts) []string {
	var out []string
	for _, e := range now {
		if slices.ContainsFunc(unique, func(same sameness) bool {
			twice := slices.ContainsFunc(now, func(o facts) bool { return o.ID != e.ID && same(e, o) })
			return twice && !slices.ContainsFunc(before, func(o facts) bool { return o.ID == e.ID && same(e, o) })
		}) {
			out = append(out, e.ID)
		}
	}
	return out
}

// sameness reports whether two ENIs share a property that must be unique.
type sameness func(x, y facts) bool

// unique lists the properties that no two ENIs of a node may share.
var unique = []sameness{
	func(x, y facts) bool { return len(x.MAC) > 0 && bytes.Equal(x.MAC, y.MAC) },
	func(x, y facts) bool { return x.Primary.IsValid() && x.Primary == y.Primary },
	func(x, y facts) bool { return samePlace(x.Attachment, y.Attachment) },
}

// samePlace reports whether two attachments have the same device index.
func samePlace(x, y *cloud.Attachment) bool {
	return phaseOf(x) == plan.Attached && phaseOf(y) == plan.Attached && x.NetworkCard == y.NetworkCard && x.DeviceIndex == y.DeviceIndex
}

// arbitrate removes disputed addresses from the view. Before is the knowledge of the ENIs before the listing.
func (v *view) arbitrate(before []facts) {
	clear(v.contradictions)
	now := make([]facts, 0, len(v.enis))
	for _, k := range v.list() {
		k.disputed, k.ambiguous = cloud.Amount{}, false
		if k.contradiction != "" {
			v.contradictions[k.contradiction] = []string{k.ID}
		}
		f := k.facts
		f.held = k.kept() // an address that is being released is not disputed
		now = append(now, f)
	}
	for _, d := range disputes(before, now) {
		k := v.enis[d.eni]
		k.disputed = k.disputed.Plus(cloud.AmountOf([]netip.Prefix{d.prefix}))
		k.held = without(k.held, func(p netip.Prefix) bool { return p == d.prefix })
		v.contradictions[fmt.Sprintf("%s is listed for %s and other ENIs", cloud.FormatPrefix(d.prefix), k.ID)] = d.among
	}
	for _, id := range doubles(before, now) {
		v.enis[id].ambiguous = true
		v.contradictions[id+" is listed with the MAC, primary address or device index of another ENI of the node"] = []string{id}
	}
}

// without returns a copy of list without the elements for which gone is true.
func without[T any](list []T, gone func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(list), gone)
}

// keepForLife keeps the MAC and primary address of a known ENI regardless of a listing.
func (k *known) keepForLife(e *facts) {
	k.contradiction = ""
	if len(k.MAC) > 0 && len(e.MAC) > 0 && !bytes.Equal(k.MAC, e.MAC) {
		k.contradiction = fmt.Sprintf("%s is listed with the MAC address %v, but has %v", k.ID, e.MAC, k.MAC)
		e.MAC = k.MAC
	}
	if k.Primary.IsValid() && e.Primary.IsValid() && k.Primary != e.Primary {
		k.contradiction = fmt.Sprintf("%s is listed with the primary address %v, but has %v", k.ID, e.Primary, k.Primary)
		e.Primary = k.Primary
	}
}

// unlogged returns the contradictions of the last listing that its predecessor did not have, and schedules
// lookups of all ENIs concerned.
func (v *view) unlogged(soon time.Time) []string {
	var out []string
	for what, ids := range v.contradictions {
		if !v.logged[what] {
			out = append(out, what)
		}
		for _, id := range ids {
			v.lookups.scheduleUnlessSet(id, soon)
		}
	}
	clear(v.logged)
	for what := range v.contradictions {
		v.logged[what] = true
	}
	slices.Sort(out)
	return out
}

// overlappingVPCs returns the VPCs in which addresses or prefixes of a listing overlap, without their ENIs: nearly always
// none. A large cluster has millions of addresses, for which disputes would take seconds and much memory.
func overlappingVPCs(list []cloud.ENI) map[string][]facts {
	out := map[string][]facts{}
	for i := range list {
		out[list[i].VPCID] = nil
	}
	maps.DeleteFunc(out, func(vpc string, _ []facts) bool { return apart(list, vpc) })
	return out
}

// apart reports whether no two addresses or prefixes of a VPC's ENIs overlap.
func apart(list []cloud.ENI, vpc string) bool {
	var four []uint64 // address and length
	var six []netip.Prefix
	add := func(p netip.Prefix) {
		if p = p.Masked(); !p.Addr().Is4() {
			six = append(six, p)
			return
		}
		a := p.Addr().As4()
		four = append(four, uint64(binary.BigEndian.Uint32(a[:]))<<8|uint64(p.Bits()))
	}
	for i := range list {
		e := &list[i]
		if e.VPCID != vpc {
			continue
		}
		if e.Primary.IsValid() {
			add(cloud.HostPrefix(e.Primary))
		}
		for _, addrs := range [...][]netip.Addr{e.Addresses, e.IPv6} {
			for _, a := range addrs {
				add(cloud.HostPrefix(a))
			}
		}
		for _, prefixes := range [...][]netip.Prefix{e.Prefixes, e.IPv6Prefixes} {
			for _, p := range prefixes {
				add(p)
			}
		}
	}
	// A prefix sorts before everything within it, so only neighbours need to be compared.
	slices.Sort(four)
	for i := 1; i < len(four); i++ {
		host := 8 + 32 - four[i-1]&0xff
		if four[i-1]>>host == four[i]>>host {
			return false
		}
	}
	slices.SortFunc(six, netip.Prefix.Compare)
	for i := 1; i < len(six); i++ {
		if six[i-1].Overlaps(six[i]) || six[i-1] == six[i] {
			return false
		}
	}
	return true
}

// Undisputed returns a listing of the ENIs of many nodes without the addresses that it assigns to ENIs of several
// nodes. Such an address or prefix stays with the ENI that had it, according to had; if none had it, it is not
// used. Lost describes what was removed. Disputes among the ENIs of one node are left to its reconciler. Owner
// returns the instance of an ENI.
func Undisputed(list []cloud.ENI, owner func(cloud.ENI) string, had func(cloud.ENI, netip.Prefix) bool) (out []cloud.ENI, lost []string) {
	byVPC, byID := overlappingVPCs(list), map[string]int{}
	if len(byVPC) == 0 {
		return list, nil
	}
	for i, e := range list {
		if _, ok := byVPC[e.VPCID]; ok {
			byVPC[e.VPCID] = append(byVPC[e.VPCID], factsOf(e, ""))
		}
		byID[e.ID] = i
	}
	out = list
	for _, enis := range byVPC {
		found := disputes(nil, enis)
		var before []facts
		for _, d := range found {
			for _, id := range d.among {
				if e := list[byID[id]]; had(e, d.prefix) {
					before = append(before, facts{ID: id, held: []netip.Prefix{d.prefix}})
				}
			}
		}
		for _, d := range disputes(before, enis) {
			at := byID[d.eni]
			mine := owner(list[at])
			if !slices.ContainsFunc(d.among, func(id string) bool { return owner(list[byID[id]]) != mine }) {
				continue
			}
			if len(lost) == 0 {
				out = slices.Clone(list)
			}
			lost = append(lost, cloud.FormatPrefix(d.prefix)+" of "+d.eni)
			is := func(p netip.Prefix) bool { return p == d.prefix }
			one := func(a netip.Addr) bool { return cloud.HostPrefix(a) == d.prefix }
			e := &out[at]
			e.Addresses, e.IPv6 = without(e.Addresses, one), without(e.IPv6, one)
			e.Prefixes, e.IPv6Prefixes = without(e.Prefixes, is), without(e.IPv6Prefixes, is)
		}
	}
	return out, lost
}
