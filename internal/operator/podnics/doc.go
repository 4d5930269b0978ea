// Package podnics gives pods their NICs in VPCs. The operator creates a PodNIC for each NIC that a pod's annotations ask
// for, and for each PodNIC a port at the provider of its VPC, which it binds to the pod's node and finally releases. Only
// the operator talks to providers: a node finds everything it needs in the PodNIC's status.
//
//	controller.go   the controllers and their triggers
//	api.go          access to the Kubernetes API: the cache, its indexes, reads
//	pod.go          podReconciler: PodNICs of pods
//	request.go      what a pod's annotations ask for (pure decisions)
//	history.go      podHistory: which NICs pods had when they were created
//	nic.go          nicReconciler: the next step of a PodNIC's NIC and its result
//	observation.go  observer: snapshot of a PodNIC, and the desired state of its NIC
//	node.go         where a port is bound, and how long a node holds it (pure decisions)
//	status.go       the status of a PodNIC (a pure decision)
//	state.go        nicStates: in-memory state of each NIC
//	quota.go        quotas: how many NICs of a namespace may have a port
//	backoff.go      backoffs: failures that delay several NICs
//	batcher.go      batcher: combining calls into requests, and limits of requests in flight
//	call.go         the requests
//	collector.go    collector: drift of ports, ports without a PodNIC, and PodNICs that vanished before their ports
//	warm.go         warmSource: what the pool of warm ports (package warm) asks for
//	events.go       podEvents: Events of pods
//	metrics.go      the metrics, and how long pods have waited
//	rbac.go         the operator's permissions at the API server
//
// Package nicplan decides the next step of a NIC, and explains why no port leaks and none is created twice. The steps of a
// NIC are sequential: a call marks it as in flight, and the reply queues it again. No worker waits for a provider.
//
// Locks are acquired in this order: nicStates, then quotas, backoffs or vanished. No call to the API server or a provider
// is made while holding one.
package podnics
