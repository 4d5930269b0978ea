// Package eni reconciles the network interfaces of a node with its warm-pool policy: observe the cloud, plan, act.
// berthd runs it for its own node, the operator for every node. It depends on neither Kubernetes nor the kernel;
// it publishes what it observes to a Node, which owns the addresses.
//
// The Reconciler (reconciler.go) makes one step at a time, in this order of precedence: apply news from other
// goroutines, observe while the view is stale, fetch what a plan needs, plan, act, publish, clean up. Its parts
// each have their own state:
//
//	view          observed state of the node's ENIs: listings, corrected by replies (view.go, facts.go)
//	              ... ENIs listed with the same address (disputes.go)
//	              ... whether it is fresh enough to plan and to publish (freshness.go)
//	              ... single ENIs to describe, and when (lookups.go)
//	instance      whether the instance exists and runs, and the limits of its type
//	observer      listings and descriptions that update both; made through lister.go
//	retries       backoff after failures
//	              ... earlier attempts for pods, or once the cloud responds to another node (outage.go)
//	refusals      attachments that the cloud refused
//	planning      the current plan, and its first step that can be made now
//	              ... package plan decides what to do, as a pure function
//	              ... package placement decides where new ENIs are created
//	              ... how much excess may be released
//	releases      withdrawn from the node and recorded before the cloud is called
//	creations     recorded before the cloud is called (step.go)
//	actor         changes in the cloud, each between two failpoints
//	              ... validation of replies (reply.go), reactions to errors (failures.go)
//	terminations  DeleteOnTermination, set by calls that no pass waits for
//	publisher     the inventory for the node; Seed restores that of the last process
//	demand        what pods need while a call is in flight
//	orphans       ENIs left behind by vanished instances
//	changes       settings passed by other goroutines
//	reporter      the status (status.go)
//
// A reply of the cloud passes through these parts: actor makes the call, replies validates the result, view records
// it, and the loop publishes it.
package eni
