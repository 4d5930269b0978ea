// Package eni keeps one node's network interfaces as its warm-pool policy
// demands: observe what the cloud says, plan, act. berthd runs it for its
// own node, the operator for every node. It knows no Kubernetes and no kernel;
// it publishes what it learns to a Node, which owns the addresses.
//
// The Reconciler (reconciler.go) makes one step after the other, in this order of
// precedence: it takes what other goroutines said, observes while the view is known to
// be stale, learns what a plan needs, plans, acts, publishes, and tidies. What it does is
// done by its parts, each with a state of its own:
//
//	view          what is known of the node's ENIs: listings, corrected by replies (view.go, facts.go)
//	              ... which ENI has what is listed for several (disputes.go)
//	              ... whether it is fresh enough to plan on and to publish (freshness.go)
//	              ... which ENIs are described one by one, and when (lookups.go)
//	instance      whether the instance exists and runs, and what its type allows
//	observer      listings and descriptions that bring both up to date; lister.go is who makes them
//	retries       what backs off after failures, and until when
//	              ... what is tried before that, for pods or since the cloud answers another node (outage.go)
//	refusals      attachments that the cloud refused
//	planning      the current plan, and the first step of it that can be made now
//	              ... package plan decides what to do, as a function of values
//	              ... package placement decides where new ENIs are created
//	              ... how much of the excess may go
//	releases      what leaves, withdrawn from the node and recorded before the cloud is asked
//	creations     what is created, recorded before the cloud is asked (step.go)
//	actor         the changes at the cloud, each between two failpoints
//	              ... whether a reply can be true (reply.go), what follows from an error (failures.go)
//	terminations  DeleteOnTermination, set by calls that no pass waits for
//	publisher     the inventory that the node gets; Seed takes that of the last process
//	demand        what pods wait for while a call is in flight
//	orphans       ENIs that vanished instances left behind
//	changes       settings that other goroutines hand over
//	reporter      the status (status.go)
//
// A reply of the cloud takes this way: actor makes the call, replies judges what it
// returned, view takes it, and the loop publishes.
package eni
