// Package compile turns NetworkPolicies and ClusterNetworkPolicies into policies whose peers are
// sets. It is pure: objects in, values out.
package compile

import (
	"fmt"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/policy"
)

// Compiled is a policy object as the operator distributes it.
type Compiled struct {
	Policy  *policy.Policy
	Subject Selector                  // the pods that it selects
	Sets    map[policy.SetID]Selector // those that its rules name
	// Problems are what makes no sense in the object, each with the field and what was expected.
	// The parts concerned match nothing; of a rule that denies or passes, everything is denied.
	Problems []string
	// Created is when a NetworkPolicy was.
	Created time.Time
	// NoSubject: which pods it selects makes no sense. Subject selects none.
	NoSubject bool

	blocks int  // of all rules
	parts  int  // rules, and ports of all of them
	refs   int  // to sets, of all rules
	full   bool // a problem says that the rules need more than MaxSets or MaxReferences
}

// MaxBlocks is the most networks in the rules of a policy. An exception splits its block into as many networks as it
// has bits more, so that a small object may describe millions.
const MaxBlocks = 20000

// MaxParts is the most rules and numbers of ports of a policy, counted together. Each costs every node of the policy's pods a rule
// or an element of a set in the kernel.
const MaxParts = 10000

const (
	// MaxSets is the most sets in the rules of a policy. A set costs the operator memory for each pod that it selects, and
	// a rule of a NetworkPolicy for egress has one for each pair of a peer and a port name: a small object may describe millions.
	MaxSets = 1000
	// MaxReferences is the most references to sets in the rules of a policy. Equal ones of a rule count once.
	MaxReferences = 20000
)

// use adds the set of a selector to some, unless they have it. It reports false if the policy has no room for that.
func (c *Compiled) use(ids *[]policy.SetID, s Selector) bool {
	id := s.ID()
	if slices.Contains(*ids, id) {
		return true
	}
	if _, has := c.Sets[id]; !has && len(c.Sets) >= MaxSets || c.refs >= MaxReferences {
		c.overflow()
		return false
	}
	c.refs++
	c.Sets[id] = s
	*ids = append(*ids, id)
	return true
}

// overflow notes, once, that the rules need more sets than a policy may have.
func (c *Compiled) overflow() {
	if !c.full {
		c.full = true
		c.problem(fmt.Errorf("the rules of the policy need more than %d sets of peers and named ports, or refer to them more than %d times: rules that exceed that match nothing", MaxSets, MaxReferences))
	}
}

func (c *Compiled) problem(err error) { c.Problems = append(c.Problems, err.Error()) }
