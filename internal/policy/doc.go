// Package policy has network policies as values: what a policy says once its selectors have become
// names of sets, and what a pod's policies decide about a connection. The operator compiles policies,
// each node turns them into nftables, and both explain them by Decide. It is pure: it knows neither
// Kubernetes nor the kernel.
//
//	policy.go  policies, rules, and sets of addresses
//	decide.go  the decision about a connection
//	blocks.go  networks without their exceptions
package policy
