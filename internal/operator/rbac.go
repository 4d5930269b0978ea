package operator

// What the operator does besides the work for nodes, whose markers are in
// nodenetwork: it leads by a Lease of its own namespace.
//
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=kube-system,resources=leases,verbs=create
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=kube-system,resources=leases,resourceNames=berth-operator,verbs=get;update
