package egress

// What the operator does for Egresses. Gateways are told what they may read by a role of
// their namespace, which the operator may not give more than it has itself (Kubernetes
// documentation, "Using RBAC Authorization", "Privilege escalation prevention"). It writes
// Events of Egresses and Pods, which are in any namespace.
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
