// Package vpcport is VPC ports as the rest of Berth sees them: values for ports, networks
// and subnets, the calls that Berth makes on them, and the classes into which a call's
// failure falls. It knows neither Kubernetes nor a provider's API; the folders below
// implement Provider.
//
//	provider.go  the calls, and what each promises
//	port.go      ports and what is asked of them
//	network.go   networks and subnets
//	owner.go     by what a port is known as Berth's, and as whose
//	check.go     a port held against what was asked for
//	text.go      texts that providers bound
//	errors.go    classes of failures
//	policy.go    what is to be done about each
package vpcport
