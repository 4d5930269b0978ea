package kubectl

import (
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/node/introspect"
)

// Counts are the numbers of a node's addresses.
type Counts struct {
	Used     int `json:"used"`     // by pods
	Warm     int `json:"warm"`     // free and assigned to the node
	Cooling  int `json:"cooling"`  // released within the cooling period
	Waiting  int `json:"waiting"`  // pods that wait for an address
	Needed   int `json:"needed"`   // addresses that the node still lacks; operator mode only
	Capacity int `json:"capacity"` // maximum for the node's ENIs or blocks; 0 if unknown
}

func (c *Counts) add(o Counts) {
	c.Used += o.Used
	c.Warm += o.Warm
	c.Cooling += o.Cooling
	c.Waiting += o.Waiting
	c.Needed += o.Needed
	c.Capacity += o.Capacity
}

// cells returns the columns of counts, which are empty if counts are unknown.
func (c *Counts) cells() []any {
	if c == nil {
		return []any{"", "", "", ""}
	}
	return []any{c.Used, c.Warm, c.Cooling, c.Waiting}
}

// countsOf returns the counts of a NodeNetwork, as the daemon and the operator reported
// them. A dual-stack pod counts once.
func countsOf(n *v1alpha1.NodeNetwork) Counts {
	c := Counts{Waiting: int(n.Status.IPAM.Waiting), Needed: int(n.Status.ENI.Needed)}
	var used, cooling [ipfamily.Number]int
	for text, u := range n.Status.IPAM.Used {
		switch f := familyOf(text); {
		case u.Cooling:
			cooling[f]++
		default:
			used[f]++
		}
	}
	c.Used, c.Cooling = slices.Max(used[:]), slices.Max(cooling[:])
	policy := policyOf(n)
	for _, e := range enisOf(n) {
		c.Warm += e.room(policy.Families)
	}
	if l := n.Status.ENI.Limits; l != nil {
		limits := cloud.Limits{IPv4PerENI: int(l.AddressesPerENI), IPv6PerENI: int(l.IPv6AddressesPerENI), Prefixes: l.Prefixes}
		c.Capacity = int(n.Status.ENI.Count) * plan.Capacity(limits, policy, false)
	}
	return c
}

// policyOf returns the parts of a NodeNetwork's policy that determine the capacity of an ENI.
func policyOf(n *v1alpha1.NodeNetwork) ipam.Policy {
	return ipam.Policy{Families: ipfamily.Set(n.EffectiveENI().IPFamilies), PrefixDelegation: n.EffectiveENI().Prefixes()}
}

// eniCounts are the addresses of one ENI.
type eniCounts struct {
	all, stays cloud.Amount // available; what is on its way back is not in stays
	used, busy [ipfamily.Number]int
}

// room returns for how many more pods the ENI has addresses.
func (e eniCounts) room(s ipfamily.Set) int {
	n := math.MaxInt
	for _, f := range s.Families() {
		n = min(n, plan.CountOf(f, e.stays)-e.busy[f])
	}
	return max(0, n)
}

// enisOf counts the addresses of a NodeNetwork by ENI.
func enisOf(n *v1alpha1.NodeNetwork) map[string]eniCounts {
	out := map[string]eniCounts{}
	for text, at := range n.Spec.IPAM.Available {
		p, err := netip.ParsePrefix(text)
		if a, aErr := netip.ParseAddr(text); aErr == nil {
			p, err = cloud.HostPrefix(a), nil
		}
		if err != nil {
			continue
		}
		e, amount := out[at.Resource], cloud.AmountOf([]netip.Prefix{p})
		e.all = e.all.Plus(amount)
		if !slices.Contains(n.Spec.IPAM.Releasing, text) {
			e.stays = e.stays.Plus(amount)
		}
		out[at.Resource] = e
	}
	for text, u := range n.Status.IPAM.Used {
		e, f := out[u.Resource], familyOf(text)
		e.busy[f]++
		if !u.Cooling {
			e.used[f]++
		}
		out[u.Resource] = e
	}
	return out
}

// familyOf returns the family of an address in text form.
func familyOf(text string) ipfamily.Family {
	if strings.Contains(text, ":") {
		return ipfamily.IPv6
	}
	return ipfamily.IPv4
}

// countsIn returns the counts of an introspection document.
func countsIn(doc introspect.Document) Counts {
	t := doc.Totals
	return Counts{Used: t.Allocated, Warm: t.Available, Cooling: t.Cooling, Waiting: t.Waiting, Capacity: t.Capacity}
}
