// Package alcorfake is Alcor (futurewei-cloud/alcor) over HTTP, with the books in memory: its
// port manager, what of its VPC and subnet managers is asked, and the agent of a node, which
// puts ports into network namespaces of VPCs. It is for tests and the lab. No real one runs
// here, so what it knows is what Alcor's entities, controllers and exceptions declare, with
// what is wrong there; it shares no code with what it tests.
//
// Ports can be listed, made (one or many), changed and deleted; VPCs and subnets be read.
// Everything else is put there by Go calls. What a request names and Alcor does not have is
// passed over, as Spring's Jackson does; Ignored tells of it.
//
//	books.go      what there is, and how tests change it
//	model.go      VPCs, subnets, ports
//	handler.go    one call: faults, routes, the log of calls
//	bodies.go     requests and replies, field by field
//	ports.go      making, changing and deleting ports
//	addresses.go  which address a port gets
//	list.go       listings
//	errors.go     refusals, as Spring tells them
//	faults.go     calls that fail
//	agent.go      ports of a node, as links in namespaces of VPCs
package alcorfake
