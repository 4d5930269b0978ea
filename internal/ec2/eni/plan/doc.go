// Package plan decides what to do next about the ENIs of one node. It is a
// function of values: it makes no call, reads no clock, keeps nothing and logs
// nothing. The linter refuses any import by which it could.
//
//	state.go     a node as a plan sees it
//	action.go    what a plan asks for
//	plan.go      limits, policy and state to actions: growth
//	shrink.go    ... and what is given back
//	move.go      ... and which ENI is emptied onto the others
//	drain.go     ... and which outdated ENIs are emptied
//	trunk.go     ... and that the node has its trunk
//	subnets.go   in which subnets new ENIs may be made
//	shortage.go  why pods that wait get nothing
//	excess.go    how much of an excess has lasted long enough to be given back;
//	             the reconciler keeps it from plan to plan (surplus.go of package eni)
package plan
