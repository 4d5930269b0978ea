// Package branchcapacity tells the scheduler how many branch interfaces of EC2 the pods of a
// Node may have: by an extended resource, v1alpha1.ResourceBranches, of which the pods ask
// for as many as they have NICs of such (package webhook). So no pod goes where none is left.
//
//	capacity.go    how many there are: a decision
//	controller.go  writing it
//
// Only status.capacity is written. The kubelet has it follow in status.allocatable, by which
// the scheduler goes, within ten seconds, and takes it away there once it is gone from
// capacity (Kubernetes documentation, "Advertise Extended Resources for a Node"). Others may
// reset it, as a kubelet that finds its Node made anew does: it is written again.
//
// An admission policy narrows the operator to this one resource
// (deploy/chart/templates/admission/branches.yaml).
//
// +kubebuilder:rbac:groups="",resources=nodes/status,verbs=patch
package branchcapacity

//go:generate controller-gen rbac:roleName=berth-operator paths=. output:rbac:dir=../../../../deploy/chart/files/rbac/branches/berth-operator
