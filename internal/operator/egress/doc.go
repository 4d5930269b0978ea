// Package egress is the operator's side of the Egresses themselves (the design of Coil v2, "On-demand
// NAT for egress traffics"): each gets a Deployment of gateways with the objects it needs, and a
// status that lists the gateways, from which nodes set up the tunnels of clients. Package clients
// decides which pods are clients.
//
//	controller.go  the controller: its watches and its reconciliation
//	kinds.go       what the cache keeps of each kind, and which pods are gateways
//	apply.go       creating, restoring and deleting objects by server-side apply
//	status.go      the status, Events and metrics
//
// Package gatewayplan decides the desired objects and the status. Only the fields that Berth needs are
// applied, with the operator's field owner: annotations set by others, such as that of a rollout
// restart, stay, and fields that the Egress no longer sets are removed. An object of the same name that
// does not belong to the Egress is left alone.
package egress

// The operator's permissions for Egresses. Gateways have a Role in their namespace, to which the
// operator cannot grant more than it has itself (Kubernetes documentation, "Using RBAC
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
