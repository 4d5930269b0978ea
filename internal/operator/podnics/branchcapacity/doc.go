// Package branchcapacity publishes how many EC2 branch interfaces the pods of a Node may have, as the extended resource
// v1alpha1.ResourceBranches. Pods request as many as they have NICs of that kind (package webhook), so that the
// scheduler places no pod where none is left.
//
// It writes status.capacity only. The kubelet copies it into status.allocatable, which the scheduler reads, within ten
// seconds, and removes it there when it is gone from capacity (Kubernetes documentation, "Advertise Extended Resources for
// a Node"). If somebody resets it, such as a kubelet whose Node was created again, it is written again.
//
// An admission policy restricts the operator to this resource (deploy/chart/templates/admission/branches.yaml).
//
// +kubebuilder:rbac:groups="",resources=nodes/status,verbs=patch
package branchcapacity

//go:generate controller-gen rbac:roleName=berth-operator paths=. output:rbac:dir=../../../../deploy/chart/files/rbac/branches/berth-operator
