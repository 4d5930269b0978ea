// Package podegress has pods reach networks outside by the gateways of Egresses: it waits until
// the operator has said, by EgressClient objects, which Egresses a pod is a client of, has the
// pod's side of the tunnels set up, keeps it to what Egresses say while the pod runs, and says in
// the EgressClients' status what is set up. It implements daemon.Egress.
//
// Decisions are made by a book, which is values in memory and does no I/O:
//
//	object.go    what an Egress and an EgressClient say, as far as that can be
//	plan.go      the egress that a pod is to have
//	book.go      what is known, and which pods a change is about
//	decide.go    whether a pod can start, and why not
//	state.go     what is to be said of a pod in its EgressClient's status
//
// Clients owns the book's lock and has the edges:
//
//	clients.go   what is made of it all, and how it runs
//	follow.go    what is watched at the API server
//	wait.go      ADDs that wait
//	setup.go     the kernel
//	report.go    the status of EgressClients
//	probe.go     whether gateways answer
//	served.go    whether they serve a pod that starts
//	tracking.go  gateways of this node whose connections have no room
//	metrics.go   the metrics
//	rbac.go      what the daemon may do at the API server
//
// Who trusts whom: the node believes the operator which Egresses a pod names and may use, and which
// select it by its labels; whether an Egress may select pods of a namespace at all it judges by the
// Namespaces itself, as the operator does (membership.Selectors). It believes an Egress's
// status which gateways there are; it believes no pod. What is no address of a host, no network,
// or of another node is left out. The operator believes a node's word for a pod's addresses only
// as far as no other pod has them.
package podegress
