// Package nicrequest parses and checks the NICs that a pod's annotations ask for. The webhook, the controller and the daemon all
// use it, so that they agree on what a pod is to have. It does no I/O.
//
//	parse.go    the annotation, and errors that name its fields
//	complete.go names of NICs, and contradictions
//	resolve.go  subnets and addresses, checked against the network
//	pod.go      whether a pod may have NICs, and in which VPC; names of PodNICs
//	vpc.go      whether a namespace may use a VPC, what may change in a running pod, and all of it for the webhook
//	limits.go   what the NICs of a namespace may have in a VPC
//	policy.go   NICs that policies give to pods
package nicrequest
