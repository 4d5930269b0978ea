package podnics

// The operator's permissions for ports of VPCs. It reads Secrets, which contain the credentials of VPCs, only in its own namespace.
// It writes Events of Pods and PodNICs, which are in any namespace.
//
// +kubebuilder:rbac:groups=berth.dev,resources=vpcs,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=berth.dev,resources=vpcs/status,verbs=patch
// +kubebuilder:rbac:groups=berth.dev,resources=podnics,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=berth.dev,resources=podnics/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=pods;nodes;namespaces,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups="",namespace=kube-system,resources=secrets,verbs=get;watch
//
//go:generate controller-gen rbac:roleName=berth-operator paths=.. paths=. paths=./nicpolicy output:rbac:dir=../../../deploy/chart/files/rbac/port/berth-operator
