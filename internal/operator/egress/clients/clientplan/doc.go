// Package clientplan makes the decisions about clients of Egresses as pure functions: which Egresses a
// pod uses or is refused, which of several pods gets an address, and in which slice a client is.
//
//	egress.go  the part of an Egress that determines its clients, and the set of all Egresses
//	decide.go  which Egresses a pod uses, and which pod gets an address
//	slices.go  distribution of clients over slices
package clientplan
