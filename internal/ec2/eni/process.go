package eni

import "net/netip"

// process is what follows from whether a process works for one node or for many:
// New chooses one, once.
type process struct {
	onInstance   bool // it runs on the node's instance, which exists and runs then
	lists        bool // it lists the node's ENIs for repair itself
	collects     bool // it looks for what vanished instances left
	yields       bool // calls for a supplied node yield to those of other processes
	recalls      bool // calls that no pod needs are given up for pods, as they wait with those of other nodes
	sharesNode   bool // another process may work for the node too
	sharesCounts bool // one call for the free counts of subnets serves many nodes
}

var (
	ofOneNode = process{onInstance: true, lists: true, collects: true, yields: true}
	ofFleet   = process{recalls: true, sharesNode: true, sharesCounts: true}
)

// Fleet is what a process that works for many nodes does for the reconciler of
// each. It has all of it.
type Fleet struct {
	// Lister observes the nodes together. Whoever has it also hands over listings
	// for repair, by Observed.
	Lister Lister
	// Elsewhere names the ENI of another node of the process that has some of an
	// IPv4 address or prefix of a subnet; empty: none has.
	Elsewhere func(subnetID string, thing netip.Prefix) (eniID string)
	// Committed lists what was recorded as about to leave, by this process or
	// another that works for the same node, and did not leave yet: addresses and
	// prefixes, and ENIs without a prefix. None of it is ever given back to the
	// node: another process may be about to ask the cloud.
	Committed func() []Release
	// RateLimited is called by a pass in which a step waits for the cloud's rate limit
	// for longer than rateLimitPatience: Status tells of it already.
	RateLimited func()
	// Beside runs a call that a pass does not wait for, in a goroutine, and has
	// a pass follow it. The call ends with the pass's context, or with End.
	Beside func(call func())
}

// noFleet is that of a process that works for this node alone. What it runs
// beside a pass Run waits for.
func (r *Reconciler) noFleet() Fleet {
	return Fleet{
		Lister:      r.own,
		Elsewhere:   func(string, netip.Prefix) string { return "" },
		Committed:   func() []Release { return nil },
		RateLimited: func() {},
		Beside:      func(call func()) { r.work.Go(func() { call(); r.Kick() }) },
	}
}
