// Package nicplan decides the next step for a NIC with pure functions. Their inputs are the desired state of the NIC, what is
// recorded and was observed of its port, and what forbids or delays a step. The caller observes, makes the calls, and records
// their failures according to vpcport.PolicyOf.
//
//	state.go   the desired and the observed state
//	next.go    the next step
//	wait.go    whether and how long to wait
//	reply.go   the observed state after a call
//	batch.go   which new ports go into one call, and which of several ports a NIC keeps
//
// No port leaks and none is created twice, whenever one operator stops and another one starts:
//
//   - A PodNIC gets a finalizer before the first request, and loses it once its port is gone.
//   - A port carries the PodNIC's UID from its creation: it is found even if the reply was lost or nothing was recorded.
//   - Before a port is created, the provider is asked whether there is one. If the provider does not show an existing one yet, it
//     rejects a second one because of its MAC address. If the provider chooses MAC addresses, one of several ports is kept.
//   - A warm port belongs to a NIC once its ID is recorded in the PodNIC, and is marked after that. No NIC of the VPC takes a port
//     that another one has recorded (package warm).
//   - A user's port is returned as it was, and never deleted.
package nicplan
