// Package podnics gives pods their NICs in VPCs. The operator makes a PodNIC for each NIC that a pod's
// annotations ask for, and for each PodNIC a port at the provider of its VPC, which it binds to the
// pod's node and releases in the end. Only the operator talks to providers: a node finds all that it needs in
// the PodNIC's status.
//
//	controller.go   the controllers, and what wakes them
//	api.go          objects of the Kubernetes API: the cache, its indexes, reads
//	pod.go          podReconciler: PodNICs of pods
//	request.go      what a pod's annotations ask for: decisions
//	history.go      podHistory: which NICs pods had when they came
//	nic.go          nicReconciler: the next step of a PodNIC's NIC, and what came of it
//	observation.go  observer: what is true of a PodNIC at one moment, and what its NIC is to have
//	node.go         where a port is bound, and for how long a node holds it: decisions
//	status.go       the status of a PodNIC: a decision
//	state.go        nicStates: what this process knows of each NIC
//	quota.go        quotas: how many NICs of a namespace may have a port
//	backoff.go      backoffs: failures that hold up several NICs
//	batcher.go      batcher: which calls one request carries, and how many are in flight
//	call.go         the requests
//	collector.go    collector: drift of ports, ports without a PodNIC, and PodNICs that vanished before their ports
//	warm.go         warmSource: what the pool of warm ports (package warm) asks
//	events.go       podEvents: Events of pods
//	metrics.go      the metrics, and for how long pods have waited
//	rbac.go         what the operator may do at the API server
//
// Package nicplan decides the next step of a NIC, and says why no port leaks and none is created twice. The
// steps of a NIC come one after another: a call marks it as in flight, and the reply has it reconciled
// again. No worker waits for a provider.
//
// Locks are taken in this order: nicStates, then quotas, backoffs or vanished. Nothing calls the API server
// or a provider under one.
package podnics
