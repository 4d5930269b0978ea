// Package clientplan decides about clients of Egresses, over values: which Egresses a pod uses and
// which it may not, whose an address is that two claim, in which slice a client is.
//
//	egress.go  an Egress as far as it decides, and all of them
//	decide.go  which Egresses a pod uses
//	claim.go   whose an address is
//	ledger.go  which client is in which slice
package clientplan
