// Package v1alpha1 defines the kinds of Berth's Kubernetes API, group berth.dev, one file per kind.
//
// Every field has one writer, named in its comment: the daemon of the node, the operator, or a
// person. Each program writes with server-side apply under its own field owner (OwnerDaemon,
// OwnerOperator).
//
// +kubebuilder:object:generate=true
// +groupName=berth.dev
package v1alpha1
