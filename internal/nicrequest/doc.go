// Package nicrequest reads what a pod's annotations ask for as NICs, and checks it. The
// webhook, the controller and the daemon all use it, so that they agree on what a pod
// is to have. It is pure: values in, values and errors out.
//
//	parse.go    the annotation as it is written
//	complete.go names, and what contradicts itself
//	resolve.go  subnets and addresses, held against the network
//	pod.go      whether a pod may have NICs, and in which VPC
//	vpc.go      whether a namespace may use a VPC, and what is wrong with a request
//	limits.go   what the NICs of a namespace may have in a VPC
//	policy.go   NICs that policies give to pods
//	change.go   what may change while the pod runs
//	errors.go   errors that name the field
//	name.go     the names of PodNICs
package nicrequest
