// Package nicplan decides what is to be done next about one NIC, as functions of values: what
// is asked for, what is recorded of it, and what was seen of its port. Whoever uses it
// makes the calls, and waits after failures as vpcport.PolicyOf says.
//
//	nic.go     what a decision depends on
//	next.go    the next step
//	reply.go   what is known after a call
//	choose.go  which port is the NIC's, where several claim to be
//	batch.go   which new ports are asked for together
//
// No port leaks and none is made twice, whenever an operator ends and another begins:
//
//   - The PodNIC has a finalizer before anything is asked for, and loses it after the
//     port is gone.
//   - A port carries the PodNIC's UID from the call on that makes it, so that one whose
//     reply was lost, or of which nothing was recorded, is found.
//   - Before a port is made the provider is asked whether there is one. What it does not
//     show yet it refuses to make again, as two ports would have one MAC address. Where
//     that cannot be had, of several ports one is kept.
//   - A port that was made before any NIC needed it is a NIC's once the PodNIC has its ID
//     recorded, and gets its mark then. Of the NICs of one VPC none is ever given a port that
//     is recorded of another (package warm).
//   - A port that a user made is given back as it was, and never deleted.
package nicplan
