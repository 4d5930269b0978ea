package nics

// What a node's daemon does for the NICs of its pods: it follows their PodNICs and the
// Namespaces that name a VPC for all their pods, and reports in status.node. It reads
// no VPC and no Secret.
//
// +kubebuilder:rbac:groups=berth.dev,resources=podnics,verbs=get;list;watch
// +kubebuilder:rbac:groups=berth.dev,resources=podnics/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch
//
//go:generate controller-gen rbac:roleName=berthd paths=.;../podevents output:rbac:dir=../../../deploy/chart/files/rbac/port/berthd
