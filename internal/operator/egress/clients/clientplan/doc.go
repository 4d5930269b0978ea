// Package clientplan decides about clients of Egresses, over values: which Egresses a pod uses or is
// refused, which of several pods has an address, and in which slice a client is.
//
//	egress.go  what of an Egress decides, and all Egresses
//	decide.go  which Egresses a pod uses, and which pod has an address
//	slices.go  which client is in which slice
package clientplan
