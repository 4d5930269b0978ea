// Package networkpolicy enforces network policies for the pods of a node: it follows what the operator says about them
// (package wire), and keeps the kernel's table (package policytable) as that says. It stores what it was told, so that
// policies are in force after a restart or a reboot while the operator is away.
//
//	enforcer.go  what is known, which pods run, and the one goroutine that changes the kernel
//	view.go      which policies the pods should have
//	held.go      policies that the kernel refuses
//	follow.go    the operator's word
//	stored.go    the file
//	denied.go    the log of denied connections
//	inside.go    pods whose packets do not pass the node's IP stack
//	looks.go     connections that policies forbid by now
//	repair.go    what other software changes in the kernel
//	health.go    the condition of the node
//	metrics.go   the same as metrics
//	dial.go      how the operator is found and called
//	status.go    what people see of it
package networkpolicy

// What berthd may do in the Kubernetes API for it. It reads no policy and no pod.
//
// +kubebuilder:rbac:groups="",namespace=kube-system,resources=configmaps,resourceNames=berth-network-policies,verbs=get
//
//go:generate controller-gen rbac:roleName=berthd paths=. output:rbac:dir=../../../deploy/chart/files/rbac/policies/berthd
