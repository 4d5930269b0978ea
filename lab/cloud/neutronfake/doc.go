// Package neutronfake is an OpenStack Networking service (Neutron, ML2) and the identity
// service in front of it (Keystone v3) over HTTP, with the books in memory: as strict as
// the real ones where it answers at all, with their errors word for word. It is for
// tests, the lab and benchmarks. What it knows is from the services' API references and
// the exceptions of Neutron 21.0 (Zed); TestLabAnswersAsNeutron of test/e2e/neutron
// compares it with a real one. It shares no code with what it tests.
//
// Ports, networks and subnets can be read; ports made (one or many), changed and deleted.
// Everything else of a network is put there by Go calls. A call that it does not know is
// answered as Neutron answers one for a resource that it does not have.
//
//	books.go      what there is, and how tests and fabrics change it
//	model.go      networks, subnets, ports
//	addresses.go  which address a port gets
//	ports.go      making and changing ports
//	binding.go    hosts with agents, plugged ports
//	trail.go      listings that trail behind
//	follow.go     for who carries packets: what there is, and when it changed
//	handler.go    one call: faults, routes, the log of calls
//	auth.go       who calls, and what policy lets them do
//	keystone.go   tokens
//	bodies.go     requests, attribute by attribute
//	replies.go    how things read in replies
//	list.go       filters, fields and pages
//	errors.go     refusals
//	faults.go     calls that fail
package neutronfake
