// Package eni keeps one node's network interfaces as its warm-pool policy
// wants them: observe what the cloud says, plan (pure), act. berthd runs it
// for its own node, the operator for every node. It knows no Kubernetes and no
// kernel; what it learns it publishes to a Node, which owns the addresses.
//
//	view.go        what is known of the node's ENIs: listings, corrected by replies
//	plan.go        limits, policy and state to actions
//	reconciler.go  one pass: observe, plan, act
//	act.go         one file of steps that change the cloud, with their failpoints
//	trouble.go     what to do about each class of error
//	orphans.go     ENIs left behind by nodes that are no more
package eni
