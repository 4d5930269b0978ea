// Package nicplan decides what to do next about one NIC, as functions of values: what the NIC is to
// have, what is recorded and was seen of its port, and what forbids or delays a step. The caller
// observes, makes the calls, and records their failures as vpcport.PolicyOf says.
//
//	state.go   the desired and the observed state
//	next.go    the next step
//	wait.go    whether it is to wait, and for how long
//	reply.go   what is known after a call
//	batch.go   which new ports one call asks for, and which of several ports is the NIC's
//
// No port leaks and none is created twice, whenever an operator stops and another one starts:
//
//   - The PodNIC has a finalizer before anything is asked for, and loses it once the port is gone.
//   - A port carries the PodNIC's UID from the call on that creates it: it is found although the
//     reply was lost, or nothing was recorded.
//   - Before a port is created the provider is asked whether there is one. If it does not show one
//     yet, it refuses a second one, which would have the same MAC address. Where the provider chooses
//     MAC addresses, one of several ports is kept.
//   - A warm port belongs to a NIC once its ID is recorded in the PodNIC, and is marked after that. No
//     NIC of the VPC takes a port that another one has recorded (package warm).
//   - A user's port is returned as it was, and never deleted.
package nicplan
