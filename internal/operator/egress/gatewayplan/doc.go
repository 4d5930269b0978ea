// Package gatewayplan decides what objects an Egress is to have and what its status is to say:
// functions of values, without a clock, a cache or the API server.
//
//	objects.go   the objects that belong to an Egress
//	template.go  the pod template: what a person asks for and what Berth needs, in one
//	gateways.go  which pods are gateways, and why others are not
//	status.go    what people and nodes see of it
package gatewayplan
