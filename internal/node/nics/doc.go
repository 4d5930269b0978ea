// Package nics gives pods NICs that are ports of a VPC: it waits until the operator has
// ports bound to this node for a pod, as PodNIC objects say, plugs them, and says so in
// their status. It implements daemon.NICs.
//
// Decisions are made by a book, which is values in memory and does no I/O:
//
//	object.go    what a PodNIC says, and whether that can be
//	wants.go     which NICs a pod asks for
//	book.go      what is known of PodNICs and namespaces
//	decide.go    whether a pod's NICs are all here, and why not
//	wanted.go    which NICs a running pod is to have by now
//	state.go     what is to be said of a NIC in its PodNIC's status
//	reason.go    why something cannot be done about a NIC, and what to do
//
// NICs owns the book's lock and has the edges:
//
//	nics.go      what is made of it all, and how it runs
//	follow.go    what is watched at the API server
//	wait.go      ADDs that wait
//	plug.go      the kernel and Open vSwitch
//	report.go    the status of PodNICs
//	health.go    whether Open vSwitch can be used
//	metrics.go   the metrics
//	rbac.go      what the daemon may do at the API server
//	none.go      the source of addresses of a node whose pods have ports only
package nics
