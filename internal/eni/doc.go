// Package eni keeps one node's network interfaces as its warm-pool policy
// wants them: observe what the cloud says, plan (pure), act. berthd runs it
// for its own node, the operator for every node. It knows no Kubernetes and no
// kernel; what it learns it publishes to a Node, which owns the addresses.
//
//	state.go       a node as a plan sees it
//	go        limits, policy and state to actions: growth; shrink.go: the rest
//	view.go        what is known of the node's ENIs: listings, corrected by replies
//	reconciler.go  one pass: observe, plan, act; and when to come back
//	publish.go     what the node is told, and what it remembers for the next start
//	observe.go     what follows from a listing of the node's ENIs
//	instance.go    whether the instance is there, and what its type allows
//	lister.go      who makes the listings: a node for itself, or a process for many
//	subnets.go     free addresses of subnets, and what is set apart of them
//	where.go       in which subnets new ENIs may be made, and how old counts may be
//	groups.go      security groups by tags
//	configure.go   other settings, and doubt, while it works
//	step.go        what is recorded and withdrawn before the cloud is asked
//	act.go         the changes at the cloud, each between two failpoints
//	deletion.go    the change that no pass waits for: DeleteOnTermination
//	trouble.go     what is done about each class of error
//	excess.go      how long excess must persist
//	orphans.go     ENIs left behind by instances that are no more
package eni
