// Package planner predicts what settings of address management do under a workload: how many addresses nodes hold,
// which EC2 calls they make, how long pods wait, and which limits they reach.
//
// Nothing here computes such numbers. A simulation runs the reconcilers, the rate limiter and the address sources of
// the daemon and the operator, unchanged, in virtual time against an in-memory EC2, and counts what they do.
//
//	scenario.go   what to simulate: subnets, nodes, settings, a workload, alternatives
//	decode.go     strict parsing of YAML and JSON; errors name the field
//	validate.go   checks, and bounds that keep a simulation finite
//	result.go     the result, as the command prints it and the HTTP API returns it
//	simulate.go   one simulation for each alternative
//	engine.go     virtual time: one event after the other, in a reproducible order
//	world.go      the VPC, the nodes and their address sources
//	workload.go   deployments, rollouts, node churn, and a scheduler
//	pods.go       the life of a pod
//	record.go     samples, calls, waits and events
//	examples.go   the scenarios that ship with Berth
//	cluster.go    a running cluster as a scenario; prometheus.go reads its history, recommend.go compares settings
//	handler.go    the HTTP API and the page; child.go simulates in a process of its own
package planner
