// Package eni keeps one node's network interfaces as its warm-pool policy
// wants them: observe what the cloud says, plan, act. berthd runs it for its
// own node, the operator for every node. It knows no Kubernetes and no kernel;
// what it learns it publishes to a Node, which owns the addresses.
//
// The loop:
//
//	reconciler.go      one pass: observe, plan, act, in this order of precedence
//	process.go         what depends on whether the process works for one node or for many
//	timers.go          when the next pass is due
//	plan/              what to do next, as a function of values
//	step.go            what is recorded and withdrawn before the cloud is asked
//	act.go             the changes at the cloud, each between two failpoints
//	failures.go        what is done about each class of error
//	observe.go         what follows from a listing of the node's ENIs
//	publish.go         what the node is told, and what it remembers for the next start
//	configure.go       other settings, and what other goroutines say meanwhile
//	change.go          ... of a reconciler that runs by itself, until a pass takes them up
//	status.go          how the node does
//
// What it knows, each with the time at which it is due:
//
//	facts.go                what a description, or the stored inventory, says of an ENI
//	view.go                 the node's ENIs: listings, corrected by replies
//	disputes.go             ... and which ENI has what is listed for several
//	reply.go                ... and whether a reply can be true
//	confidence.go           whether a plan may be made on the view, and published
//	lookups.go              ENIs that are to be described singly
//	instance.go             whether the instance exists and runs, and what its type allows
//	presence.go             ... and how the cloud is asked for that
//	placement.go            where ENIs are and may be made: subnets, routes, security groups
//	subnetcounts.go         ... and how old free counts may be
//	retries.go              what waits after failures, and until when
//	probe.go                ... and is tried before its time for a pod that came to wait
//	outage.go               ... or because another node had an answer
//	outdated.go             which ENIs are not as configured
//	groups.go               whether ENIs have the primary's security groups
//	surplus.go              how much of the excess may go, by how long it has lasted (plan/excess.go)
//	links.go                ENIs whose links the node lacks
//	trunk.go                whether the trunk is there that is to be
//	attachrefusals.go       ENIs that the cloud refuses to attach
//	deleteontermination.go  the attribute of that name, which no pass waits for
//	committed.go            what is to leave where several processes may work for a node
//	orphans.go              ENIs left behind by instances that are no more
//
// What nodes of a process share:
//
//	lister.go   who makes the listings: a node for itself, or a process for many
//	shared.go   security groups by tags, route tables of VPCs
//	subnets.go  free addresses of subnets, and what is set apart of them
//	memory.go   ... and how long answers are remembered
package eni
