// Package podegress lets pods reach networks outside the cluster through the gateways of Egresses. It waits until the
// operator has said, by EgressClient objects, which Egresses a pod uses, sets up the pod's side of the tunnels, keeps
// that up to date while the pod runs, and reports in the EgressClients' status what is set up.
//
// Decisions are made on values in memory, without I/O:
//
//	object.go    what an Egress and an EgressClient say, with their validation
//	observed.go  what is known, and which pods a change concerns
//	decide.go    whether a pod can start, and why not
//	plan.go      the egress that a pod is to have
//	state.go     what an EgressClient's status is to say, and the reporter that writes it
//
// Clients owns the lock of the observed state. The rest does I/O without it:
//
//	clients.go   what the daemon calls
//	follow.go    what is watched at the API server
//	setup.go     the kernel
//	probe.go     whether gateways answer
//	served.go    whether gateways serve a pod that starts
//	tracking.go  gateways on this node whose connection tables are full
//	metrics.go   the metrics
//
// Trust: the node believes the operator which Egresses a pod names and may use, and which select it by its labels.
// Whether an Egress may select pods of a namespace at all, the node checks against the Namespaces itself, as the
// operator does (membership.Selectors). It believes an Egress's status about its gateways, and it believes no pod.
// Values that are no host address or network, and objects of other nodes, are ignored. The operator believes a node
// about a pod's addresses only as far as no other pod has them.
package podegress

// What berthd does in the Kubernetes API for egress. It reads no pod.
//
// +kubebuilder:rbac:groups=berth.dev,resources=egresses;egressclients,verbs=get;list;watch
// +kubebuilder:rbac:groups=berth.dev,resources=egressclients/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch
//
//go:generate controller-gen rbac:roleName=berthd paths=.;../podevents output:rbac:dir=../../../deploy/chart/files/rbac/egress/berthd
