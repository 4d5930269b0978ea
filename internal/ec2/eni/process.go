package eni

import "net/netip"

// process is what depends on whether a process works for one node or for many.
type process struct {
	onInstance   bool // it runs on the node's instance, which therefore exists and runs
	lists        bool // it lists the node's ENIs for repair itself
	collects     bool // it looks for what vanished instances left
	yields       bool // calls for a supplied node yield to those of other processes
	recalls      bool // calls that no pod needs are recalled for pods, as they queue with those of other nodes
	sharesNode   bool // another process may work for the node too
	sharesCounts bool // one call for the free counts of subnets serves many nodes
}

var (
	ofOneNode = process{onInstance: true, lists: true, collects: true, yields: true}
	ofFleet   = process{recalls: true, sharesNode: true, sharesCounts: true}
)

// Fleet is what a process that works for many nodes does for the reconciler of
// each. No field may be nil.
type Fleet struct {
	// Lister observes the nodes together. The fleet also hands over listings
	// for repair, by Observed.
	Lister Lister
	// Elsewhere returns the ENI of another node of the process that has part of an
	// address or prefix of a subnet; empty: none has.
	Elsewhere func(subnetID string, p netip.Prefix) (eniID string)
	// Committed lists the addresses and prefixes, and the ENIs (without a prefix),
	// that this process or another that works for the same node recorded as about to
	// leave, and that have not left yet. None of them is ever restored to the
	// node: another process may be about to ask the cloud.
	Committed func() []Release
	// RateLimited is called during a pass in which a step waits for the cloud's rate limit
	// for longer than rateLimitPatience. Status says so already.
	RateLimited func()
	// Beside runs a call that no pass waits for in a goroutine, and has
	// a pass follow it. The call ends with the pass's context, or with End.
	Beside func(call func())
}

// fleetOfOne returns the Fleet of a process that works for this node alone. Run waits
// for the calls that it runs beside a pass.
func (r *Reconciler) fleetOfOne() *Fleet {
	return &Fleet{
		Lister:      r.observer.own,
		Elsewhere:   func(string, netip.Prefix) string { return "" },
		Committed:   func() []Release { return nil },
		RateLimited: func() {},
		Beside:      func(call func()) { r.loop.beside.Go(func() { call(); r.Kick() }) },
	}
}
