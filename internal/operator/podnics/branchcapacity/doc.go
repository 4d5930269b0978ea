// Package branchcapacity publishes how many EC2 branch interfaces the pods of a Node may have, as the extended resource
// v1alpha1.ResourceBranches. Pods request one for each NIC of that kind (package webhook), so that the scheduler places
// no pod on a Node without branches left.
//
// It writes only status.capacity. Within ten seconds, the kubelet copies it into status.allocatable, which the scheduler
// reads, and removes it there when it is gone from capacity (Kubernetes documentation, "Advertise Extended Resources for
// a Node"). If the value is reset, for example by a kubelet whose Node was recreated, it is written again.
//
// An admission policy restricts the operator to this resource (deploy/chart/templates/admission/branches.yaml).
//
// +kubebuilder:rbac:groups="",resources=nodes/status,verbs=patch
package branchcapacity

//go:generate controller-gen rbac:roleName=berth-operator paths=. output:rbac:dir=../../../../deploy/chart/files/rbac/branches/berth-operator
