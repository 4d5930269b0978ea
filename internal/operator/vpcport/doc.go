// Package vpcport is the operator's side of VPC ports (the VPC and NIC design of Arktos):
// it makes a PodNIC for each NIC that a pod's annotations ask for, and for each PodNIC a
// port at the provider of its VPC, which it binds to the pod's node and gives back in the
// end. It alone talks to providers; a node finds in the status of a PodNIC all that it
// needs.
//
//	controller.go  the controllers: what each watches and which workers it has
//	cache.go       by which fields objects are found
//	seam.go        the VPCs whose providers are opened (package vpc opens them)
//	wish.go        what a pod's annotations ask for: decisions
//	pod.go         a pod: PodNICs made for it, and deleted after it
//	nic.go         a PodNIC: its next step, and what came of the last
//	scene.go       what is true of a PodNIC at one moment: who has it, what is wanted
//	hold.go        whether a node may still have a port plugged: a decision
//	status.go      what people and nodes see of it: a decision
//	book.go        what is known of each NIC besides its PodNIC
//	gate.go        failures that hold up several NICs
//	desk.go        which calls are made together, and how many at once
//	call.go        the calls
//	sweep.go       what others did to ports, and ports that nobody has
//	tell.go        Events of pods
//	metrics.go     the metrics
//
// What is next for a NIC is decided by package plan, which says why no port leaks and none
// is made twice. A NIC's steps come one after the other: a call about it marks it busy in
// the book, and its answer has it reconciled again; so no worker waits for a provider.
// Calls of many NICs are put together on the desk of their VPC.
package vpcport
