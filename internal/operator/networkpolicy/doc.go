// Package networkpolicy is the operator's side of network policies: it follows pods, namespaces, nodes and policies of the
// cluster, and sends each node the policies of its own pods (package feed).
//
//	setup.go        settings, the server and metrics
//	follow.go       changes of objects, and problems of policies
//	serve.go        the stream to a node
//	token.go        authentication of nodes
//	certificate.go  the server's certificate, and its publication to nodes
package networkpolicy

// The operator's rights for network policies.
//
// +kubebuilder:rbac:groups="",resources=pods;namespaces;nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups=networking.k8s.io,resources=networkpolicies,verbs=get;list;watch
// +kubebuilder:rbac:groups=policy.networking.k8s.io,resources=clusternetworkpolicies,verbs=get;list;watch
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups="",namespace=kube-system,resources=configmaps,resourceNames=berth-network-policies,verbs=get;patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
//
//go:generate controller-gen rbac:roleName=berth-operator paths=.. paths=. output:rbac:dir=../../../deploy/chart/files/rbac/policies/berth-operator
