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
	Sets    map[policy.SetID]Selector // the sets in its rules
	// Problems lists invalid parts of the object, each with the field and the expected value.
	// These parts match nothing; a Deny or Pass rule with such a part denies everything.
	Problems []string
	// Created is the creation time of a NetworkPolicy.
	Created time.Time
	// NoSubject is set if the pod selector is invalid. Subject then selects nothing.
	NoSubject bool

	blocks int  // of all rules
	parts  int  // rules, and ports of all of them
	refs   int  // to sets, of all rules
	full   bool // the rules need more than MaxSets or MaxReferences, which a problem reports
}

// MaxBlocks is the maximum number of networks in the rules of a policy. An exception splits its block into one network for
// each additional bit, so that a small object may describe millions.
const MaxBlocks = 20000

// MaxParts is the maximum number of rules and port numbers of a policy together. Each takes a rule or set element in the kernel of
// every node with pods of the policy.
const MaxParts = 10000

const (
	// MaxSets is the maximum number of sets in the rules of a policy. The operator needs memory for each pod that a set selects,
	// and an egress rule of a NetworkPolicy has a set for each pair of a peer and a port name: a small object may describe millions.
	MaxSets = 1000
	// MaxReferences is the maximum number of references to sets in the rules of a policy. Duplicates in a rule count once.
	MaxReferences = 20000
)

// use adds the set of a selector to a list unless the list has it. It returns false if the policy would exceed its limits.
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

// overflow reports once that the rules need more sets than a policy may have.
func (c *Compiled) overflow() {
	if !c.full {
		c.full = true
		c.problem(fmt.Errorf("the rules of the policy need more than %d sets of peers and named ports, or more than %d references to them: rules that exceed these limits match nothing", MaxSets, MaxReferences))
	}
}

func (c *Compiled) problem(err error) { c.Problems = append(c.Problems, err.Error()) }
