// Package networkpolicy enforces network policies for the pods of a node. It receives policies from the operator (package
// wire), keeps the kernel's table (package policytable) in sync with them, and stores them on disk, so that they are in
// force after a restart or a reboot even if the operator is down.
//
//	enforcer.go  received policies, running pods, and the goroutine that changes the kernel
//	view.go      the desired policies of each pod
//	held.go      policies that the kernel rejects
//	follow.go    the stream from the operator
//	stored.go    the file with the last known policies
//	denied.go    the log of denied connections
//	inside.go    pods whose packets do not pass the node's IP stack
//	looks.go     ending connections that policies no longer allow
//	repair.go    restoring what other software changes in the kernel
//	health.go    the condition of the node
//	metrics.go   metrics
//	dial.go      finding the leading operator and connecting to it
//	status.go    status for introspection
package networkpolicy

// RBAC of berthd for network policies. It reads neither policies nor pods.
//
// +kubebuilder:rbac:groups="",namespace=kube-system,resources=configmaps,resourceNames=berth-network-policies,verbs=get
//
//go:generate controller-gen rbac:roleName=berthd paths=. output:rbac:dir=../../../deploy/chart/files/rbac/policies/berthd
