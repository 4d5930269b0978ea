// Package policy represents network policies as values, with names of sets in place of selectors, and decides about
// connections. The operator compiles policies, each node translates them to nftables, and both explain them with Decide.
// The package is pure: it depends neither on Kubernetes nor on the kernel.
//
//	policy.go  policies, rules, and sets of addresses
//	decide.go  the decision about a connection
//	blocks.go  networks without their exceptions
package policy
