// Package egress is the operator's side of Egresses themselves (the design of Coil v2,
// "On-demand NAT for egress traffics"): each gets a Deployment of gateways with all that
// belongs to it, and its status says which gateways there are, by which nodes set up the
// tunnels of clients. Who is a client is package clients' work.
//
//	controller.go  the controller: what it watches, and what it does for an Egress
//	kinds.go       the kinds of objects that are kept in memory, and what of them
//	apply.go       objects made, mended and removed by server-side apply
//	book.go        what was applied last, so that nothing is applied twice
//	refusal.go     what an answer of the API server means for the Egress
//	tell.go        the status and Events
//	metrics.go     the metrics
//	rbac.go        what the operator may do at the API server
//
// Package plan decides what is to be there and what the status says. What is applied are the
// fields that Berth minds, under the operator's field owner: an annotation of anybody else,
// such as that of a rollout restart, stays, and a field that the Egress does not ask for any
// more goes. An object of the same name that is not the Egress's is left alone.
package egress
