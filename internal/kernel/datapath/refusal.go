package datapath

import (
	"slices"
	"strings"
)

// Packet filters of others are judged by those of their rules that hold for every packet from, or to, a pod. What depends on
// addresses, ports or the state of a connection is passed over: whether it lets pods' packets pass cannot be told.

// flow is a pod's packets: those that it sends, or that it is sent, of one family.
type flow struct {
	sent   bool
	family int
}

// answer is whether something holds for all packets of a flow, for none, or for some that cannot be told.
type answer int8

const (
	no    answer = -1
	maybe answer = 0
	yes   answer = 1
)

// condition is one that a rule sets. The zero value is one that cannot be judged.
type condition struct {
	about  subject
	link   string // a name, or how it begins
	begins bool
	family int
	not    bool
}

type subject int

const (
	comesBy subject = iota + 1
	leavesBy
	isOfFamily
)

func (c condition) holds(f flow) (a answer) {
	switch {
	case c.about == isOfFamily && c.family == f.family:
		a = yes
	case c.about == isOfFamily:
		a = no
	case c.about == comesBy && f.sent, c.about == leavesBy && !f.sent:
		a = c.isPodLink()
	}
	if c.not {
		return -a
	}
	return a
}

// isPodLink tells whether the condition's link is one of a pod's.
func (c condition) isPodLink() answer {
	switch {
	case c.begins && strings.HasPrefix(LinkPrefix, c.link):
		return yes
	case strings.HasPrefix(c.link, LinkPrefix):
		return maybe
	}
	return no
}

type action int

const (
	goesOn action = iota // or what cannot be judged
	accepts
	refuses
	returns
	jumps
	leaps // and does not come back (goto)
)

// filterRule is a rule of a packet filter, or the policy of a base chain, which is its last rule.
type filterRule struct {
	conditions []condition
	does       action
	chain      string // to which it jumps or leaps
	policy     bool
}

func (r filterRule) matches(f flow) answer {
	a := yes
	for _, c := range r.conditions {
		a = min(a, c.holds(f))
	}
	return a
}

// filterChains reads the rules of a chain.
type filterChains func(chain string) ([]filterRule, error)

// refusal is a rule that refuses pods' packets, and its chain.
type refusal struct {
	chain string
	rule  filterRule
}

// maxJumps is the most chains that are followed; the kernel follows 16 (NFT_JUMP_STACK_SIZE).
const maxJumps = 16

// find follows the rules from a base chain on, and returns the first that refuses all packets of a flow that reach it.
func (read filterChains) find(chain string, f flow) (*refusal, error) {
	found, decided, err := read.follow(chain, f, maxJumps)
	if decided || err != nil {
		return found, err
	}
	rules, err := read(chain) // the packets left the chain, for its policy
	if i := slices.IndexFunc(rules, func(r filterRule) bool { return r.policy }); i >= 0 && rules[i].does == refuses {
		found = &refusal{chain, rules[i]}
	}
	return found, err
}

// follow tells whether the packets are decided about by the end of the chain.
func (read filterChains) follow(chain string, f flow, deeper int) (found *refusal, decided bool, err error) {
	if deeper == 0 {
		return nil, false, nil
	}
	rules, err := read(chain)
	if err != nil {
		return nil, false, err
	}
	for _, r := range rules {
		if r.does == goesOn || r.matches(f) != yes {
			continue
		}
		switch r.does {
		case accepts:
			return nil, true, nil
		case refuses:
			return &refusal{chain, r}, true, nil
		case returns:
			return nil, false, nil
		}
		if found, decided, err = read.follow(r.chain, f, deeper-1); err != nil || decided || r.does == leaps {
			return found, decided, err
		}
	}
	return nil, false, nil
}
