// Package podnics is the operator's side of VPC ports (the VPC and NIC design of Arktos):
// it makes a PodNIC for each NIC that a pod's annotations ask for, and for each PodNIC a
// port at the provider of its VPC, which it binds to the pod's node and gives back in the
// end. It alone talks to providers; a node finds in the status of a PodNIC all that it
// needs.
//
//	controller.go  the controllers: what each watches and which workers it has
//	cache.go       by which fields objects are found
//	kinds.go       the kinds of objects that are kept in memory
//	seam.go        the VPCs whose providers are opened (package vpc opens them)
//	wish.go        what a pod's annotations ask for: decisions
//	pod.go         a pod: PodNICs made for it, and deleted after it
//	nic.go         a PodNIC: its next step, and what came of the last
//	scene.go       what is true of a PodNIC at one moment: who has it, what is wanted
//	hold.go        whether a node may still have a port plugged: a decision
//	status.go      what people and nodes see of it: a decision
//	book.go        what is known of each NIC besides its PodNIC
//	places.go      how many NICs of a namespace have a port
//	early.go       ports of pods that have no node yet: a decision
//	gate.go        failures that hold up several NICs
//	desk.go        which calls are made together, and how many at once
//	call.go        the calls
//	sweep.go       what others did to ports, and ports that nobody has
//	abandoned.go   of these, ports of PodNICs that vanished
//	warm.go        ports that are ready for NICs to come (package warm keeps them)
//	tell.go        Events of pods
//	policy.go      Events of pods about the policies that give them NICs
//	waits.go       what pods wait for, and since when
//	metrics.go     the metrics
//	rbac.go        what the operator may do at the API server
//
// What is next for a NIC is decided by package plan, which says why no port leaks and none
// is made twice. A NIC's steps come one after the other: a call about it marks it busy in
// the book, and its answer has it reconciled again; so no worker waits for a provider.
// Calls for many NICs of a VPC are put together (desk.go).
package podnics
