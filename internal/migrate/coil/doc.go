// Package coil moves nodes and objects of Coil, version 2 and version 1, to Berth.
//
// On a node Berth adopts the pods that Coil made while they run. A pod of Coil v2 is recognized by the alias of its
// link, COIL:POOL:CONTAINER:INTERFACE, and has the addresses that table 116 routes to that link. Coil v1 leaves no trace
// of the container on the node: its pods come from a dump of its etcd.
//
// To Coil an address is in use while the alias and the route of table 116 are there. Apply keeps both, and the link's
// addresses on the node, which pods may have as their gateway, so that Rollback can give every pod back. Finish removes
// them.
//
//	observe.go   what the node has of Coil
//	plan.go      each pod's fate and the obstacles (pure functions)
//	node.go      the steps on a node
//	leftovers.go tables and files that Coil leaves
//	egress.go    clients of Coil's Egresses
//	chained.go   nodes where Coil gives pods egress alone
//	pod.go       the inside of a pod's network namespace
//	nexthop.go   removal of a link's last IPv4 address, which keeps the routes
package coil
