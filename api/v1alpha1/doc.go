// Package v1alpha1 holds the kinds of Berth's Kubernetes API, group berth.dev,
// one file a kind.
//
// Every field has one writer, which its comment names: the daemon of the node,
// the operator, or a person. Each writer uses server-side apply under its own
// field owner (OwnerDaemon, OwnerOperator).
//
// +kubebuilder:object:generate=true
// +groupName=berth.dev
package v1alpha1
