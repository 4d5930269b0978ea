// Package gatewayplan decides the desired objects and the desired status of an Egress, as pure
// functions without a clock, a cache or the API server.
//
//	objects.go   the objects that belong to an Egress
//	template.go  the pod template: the user's, merged with Berth's
//	gateways.go  which pods are gateways, and why others are not ready
//	status.go    the status, for users and nodes
package gatewayplan
