package policy

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
)

// Tier orders policies: a tier is evaluated after the previous one
// (https://network-policy-api.sigs.k8s.io/api-overview/).
type Tier int

// The tiers. NetworkPolicies are Namespaced.
const (
	Admin Tier = iota
	Namespaced
	Baseline
)

// String is the tier's name in the API.
func (t Tier) String() string {
	switch t {
	case Admin:
		return "Admin"
	case Namespaced:
		return "NetworkPolicy"
	case Baseline:
		return "Baseline"
	}
	return fmt.Sprintf("Tier(%d)", int(t))
}

// Direction is a direction of connections, as seen by the pod that a policy selects.
type Direction int

// The directions.
const (
	Ingress Direction = iota
	Egress
)

// Directions are both directions.
var Directions = [...]Direction{Ingress, Egress}

// String is the direction's name in the API.
func (d Direction) String() string {
	if d == Egress {
		return "Egress"
	}
	return "Ingress"
}

// Action is the action of a rule for a matching connection.
type Action int

// The actions. A NetworkPolicy has Accept only.
const (
	Accept Action = iota
	Deny
	Pass // continue with the next tier
)

// String is the action's name in the API.
func (a Action) String() string { return [...]string{"Accept", "Deny", "Pass"}[a] }

// Ref names a policy object.
type Ref struct {
	Namespace string // empty for a ClusterNetworkPolicy
	Name      string
}

// Kind is the object's kind.
func (r Ref) Kind() string {
	if r.Namespace == "" {
		return "ClusterNetworkPolicy"
	}
	return "NetworkPolicy"
}

// String returns "KIND NAMESPACE/NAME", for messages.
func (r Ref) String() string { return r.Kind() + " " + strings.TrimPrefix(r.Namespace+"/"+r.Name, "/") }

// Policy is one policy object, without its pod selector.
type Policy struct {
	Ref
	Tier     Tier
	Priority int32 // in its tier, lower first; 0 for NetworkPolicies
	// Isolates is set for a direction if connections of selected pods need a rule that accepts
	// them. Only NetworkPolicies isolate.
	Isolates [2]bool
	Rules    [2][]Rule // by direction; the first match applies
}

// Compare is the order of evaluation: by tier, priority and name.
func Compare(a, b *Policy) int {
	return cmp.Or(cmp.Compare(a.Tier, b.Tier), cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// Judges reports whether the policy can decide anything about a direction.
func (p *Policy) Judges(d Direction) bool { return p.Isolates[d] || len(p.Rules[d]) > 0 }

// Sets returns the sets in the policy's rules, without duplicates.
func (p *Policy) Sets() map[SetID]bool {
	all := map[SetID]bool{}
	for _, rules := range p.Rules {
		for _, r := range rules {
			for _, id := range r.Peers {
				all[id] = true
			}
			for _, id := range r.Named {
				all[id] = true
			}
		}
	}
	return all
}

// Rule is one rule. It matches a connection whose peer and whose port match.
type Rule struct {
	Name   string // name from the policy object; may be empty
	Action Action

	// The peer is the source for Ingress and the destination for Egress. It matches if it is in any
	// of Peers or Blocks.
	AnyPeer bool
	Peers   []SetID
	Blocks  []netip.Prefix // disjoint, in order

	// The destination port matches if it is in any of Ports, or if destination, protocol and port
	// are in any of Named. With AnyPort every protocol matches, also those without ports.
	AnyPort bool
	Ports   []Ports
	Named   []SetID
}

// Ports is an inclusive range of ports of a protocol.
type Ports struct {
	Protocol    uint8 // unix.IPPROTO_TCP …
	First, Last uint16
}

// SetID names a set: of addresses, or, for named ports, of destinations (Element). Sets of the same
// selector have the same name.
type SetID string

// Element is a member of a set. In sets of addresses it has an address only.
type Element struct {
	Addr     netip.Addr
	Protocol uint8
	Port     uint16
}

// SetChange is a change of a set.
type SetChange struct {
	Whole    bool             // Elements replace the previous content
	Elements map[Element]bool // added (true) or removed
}

// Note records that an element was added or removed. An element that was removed and added again is unchanged.
func (c *SetChange) Note(e Element, came bool) {
	if c.Elements == nil {
		c.Elements = map[Element]bool{}
	}
	if was, noted := c.Elements[e]; c.Whole && !came || !c.Whole && noted && was != came {
		delete(c.Elements, e)
		return
	}
	c.Elements[e] = came
}

// Then adds a later change.
func (c *SetChange) Then(later *SetChange) {
	if later.Whole {
		*c = SetChange{Whole: true}
	}
	for e, came := range later.Elements {
		c.Note(e, came)
	}
}

// SetChanges are changes by set.
type SetChanges map[SetID]*SetChange

// Of returns the change of a set, for modification.
func (c SetChanges) Of(id SetID) *SetChange {
	if c[id] == nil {
		c[id] = &SetChange{}
	}
	return c[id]
}

// Sets reports whether a set has an element.
type Sets interface {
	Has(id SetID, e Element) bool
}

// Digest identifies the content of a policy. Policies with the same rules and name have the same digest.
func (p *Policy) Digest() string {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %d %d %v\n", p.Namespace, p.Name, p.Tier, p.Priority, p.Isolates)
	for d, rules := range p.Rules {
		for _, r := range rules {
			fmt.Fprintf(h, "%d %q %d %t %q %v %t %v %q\n", d, r.Name, r.Action, r.AnyPeer, r.Peers, r.Blocks, r.AnyPort, r.Ports, r.Named)
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}
