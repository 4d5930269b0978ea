package podegress

// What a node's daemon does for pods that reach the outside by gateways: it follows their
// EgressClients, all Egresses, and the labels of Namespaces, by which Egresses select pods; and
// it reports in status.node. It reads no pod.
//
// +kubebuilder:rbac:groups=berth.dev,resources=egresses;egressclients,verbs=get;list;watch
// +kubebuilder:rbac:groups=berth.dev,resources=egressclients/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch
//
//go:generate controller-gen rbac:roleName=berthd paths=.;../podevents output:rbac:dir=../../../deploy/chart/files/rbac/egress/berthd
