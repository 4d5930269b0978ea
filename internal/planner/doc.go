// Package planner predicts the effect of address management settings under a workload: how many addresses nodes hold,
// which EC2 calls they make, how long pods wait, and which limits they reach.
//
// The package contains no formulas for these numbers. A simulation runs the unchanged reconcilers, rate limiter and
// address sources of the daemon and the operator in virtual time against an in-memory EC2, and counts what happens.
//
//	scenario.go   the input: subnets, nodes, settings, a workload, alternatives
//	decode.go     strict parsing of YAML and JSON; errors name the field
//	validate.go   checks, and limits that keep a simulation short
//	result.go     the result of the command and the HTTP API
//	simulate.go   one simulation for each alternative
//	engine.go     virtual time: one event after another, in a reproducible order
//	world.go      the VPC, the nodes and their address sources
//	workload.go   deployments, rollouts, node churn, and a scheduler
//	pods.go       pod lifecycle
//	record.go     samples, calls, waits and events
//	examples.go   the scenarios that ship with Berth
//	cluster.go    a running cluster as a scenario; prometheus.go reads its history, recommend.go compares settings
//	handler.go    the HTTP API and the page; child.go simulates in a separate process
package planner
