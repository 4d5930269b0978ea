// Package podegress lets pods reach networks outside the cluster through the gateways of Egresses. It waits until
// EgressClient objects show which Egresses a pod uses, sets up the pod's side of the tunnels, keeps it up to date while
// the pod runs, and reports the result in the EgressClients' status.
//
// Decisions are made on values in memory, without I/O:
//
//	object.go    the relevant fields of Egresses and EgressClients, with their validation
//	observed.go  the observed state, and which pods a change concerns
//	decide.go    whether a pod can start, and why not
//	plan.go      the desired egress of a pod
//	state.go     the desired status of an EgressClient, and the reporter that writes it
//
// Clients owns the lock of the observed state. The rest does I/O without it:
//
//	clients.go   the interface to the daemon
//	follow.go    watches of the API server
//	setup.go     the kernel state
//	probe.go     probes of gateways
//	served.go    waiting until gateways serve a starting pod
//	tracking.go  gateways on this node whose connection tables are full
//	metrics.go   the metrics
//
// Trust: the node believes the operator about which Egresses a pod names and may use, and which select it by its labels.
// Whether an Egress may select pods of a namespace at all is checked by the node against the Namespaces, as in the
// operator (membership.Selectors). The node believes an Egress's status about its gateways, and believes no pod.
// Values that are not host addresses or networks, and objects of other nodes, are ignored. The operator believes a node
// about a pod's addresses only if no other pod has them.
package podegress

// berthd's use of the Kubernetes API for egress. It reads no pods.
//
// +kubebuilder:rbac:groups=berth.dev,resources=egresses;egressclients,verbs=get;list;watch
// +kubebuilder:rbac:groups=berth.dev,resources=egressclients/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch
//
//go:generate controller-gen rbac:roleName=berthd paths=.;../podevents output:rbac:dir=../../../deploy/chart/files/rbac/egress/berthd
