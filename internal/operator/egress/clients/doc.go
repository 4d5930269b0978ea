// Package clients is the operator's side of pods that use Egresses: it decides which pods
// are clients of which, tells their nodes by EgressClients, and the gateways by
// EgressClientSlices.
//
// Pods, Namespaces, Egresses and EgressClients are read from the cache; what follows of them
// for each pod is kept in a book, from which slices are written. An event of one pod is work
// for that pod, for those that have or claim its addresses, and for one slice of each of its
// Egresses. All that is in the book follows from objects, so that an operator that begins
// writes what differs only.
//
//	controller.go  the controllers, and which events are work for whom
//	cache.go       what is kept in memory, and found by
//	book.go        what is known of all clients
//	begin.go       filling the book
//	pod.go         one pod: its EgressClient
//	stand.go       how far a client has come with each of its Egresses
//	claims.go      whose an address is
//	egress.go      one Egress: who may be affected by a change, its slices
//	slices.go      writing slices
//	status.go      what Egresses and EgressClients say
//	tell.go        Events
//	metrics.go     metrics
package clients
