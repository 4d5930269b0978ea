// Package compile turns NetworkPolicies and ClusterNetworkPolicies into policies whose peers are
// sets. It is pure: objects in, values out.
package compile

import "github.com/berthnet/berth/internal/policy"

// Compiled is a policy object as the operator distributes it.
type Compiled struct {
	Policy  *policy.Policy
	Subject Selector                  // the pods that it selects
	Sets    map[policy.SetID]Selector // those that its rules name
	// Problems are what makes no sense in the object, each with the field and what was expected.
	// The parts concerned match nothing; of a rule that denies or passes, everything is denied.
	Problems []string

	blocks int // of all rules
}

// MaxBlocks is the most networks in the rules of a policy. An exception splits its block into as many networks as it
// has bits more, so that a small object may describe millions.
const MaxBlocks = 20000

// use notes a selector and returns the name of its set.
func (c *Compiled) use(s Selector) policy.SetID {
	id := s.ID()
	c.Sets[id] = s
	return id
}

func (c *Compiled) problem(err error) { c.Problems = append(c.Problems, err.Error()) }
