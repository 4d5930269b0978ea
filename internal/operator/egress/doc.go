// Package egress is the operator's side of Egresses themselves (the design of Coil v2,
// "On-demand NAT for egress traffics"): each gets a Deployment of gateways with all that
// belongs to it, and a status with the gateways, by which nodes set up the
// tunnels of clients. Package clients decides which pods are clients.
//
//	controller.go  the controller: what it watches, and what it does for an Egress
//	kinds.go       what the cache keeps of each kind, and which pods are gateways
//	apply.go       creating, restoring and deleting objects by server-side apply, once each
//	status.go      the status, Events and metrics
//
// Package gatewayplan decides the desired objects and the status. Only the fields that Berth needs are
// applied, under the operator's field owner: an annotation of somebody else, such as
// that of a rollout restart, stays, and a field that the Egress does not ask for any more is removed. An
// object of the same name that does not belong to the Egress is left alone.
package egress

// The operator's rights for Egresses. Gateways read by a Role in their namespace, to which the
// operator cannot give more rights than it has itself (Kubernetes documentation, "Using RBAC
// Authorization", "Privilege escalation prevention"). Events of Egresses and Pods are in any
// namespace.
//
// +kubebuilder:rbac:groups=berth.dev,resources=egresses,verbs=get;list;watch
// +kubebuilder:rbac:groups=berth.dev,resources=egresses/status,verbs=patch
// +kubebuilder:rbac:groups=berth.dev,resources=egressclientslices,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=services;serviceaccounts,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=apps,resources=deployments,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=apps,resources=replicasets,verbs=get;list;watch
// +kubebuilder:rbac:groups=rbac.authorization.k8s.io,resources=roles;rolebindings,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
//
//go:generate controller-gen rbac:roleName=berth-operator paths=.. paths=. paths=./clients output:rbac:dir=../../../deploy/chart/files/rbac/egress/berth-operator
