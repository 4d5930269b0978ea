// Package nics gives pods NICs that are ports of a VPC. It waits until PodNIC objects show that the operator has bound
// ports to this node for a pod, plugs them, and reports that in the PodNICs' status.
//
// Decisions are made on values in memory, without I/O:
//
//	object.go    the relevant fields of a PodNIC, with their validation
//	wants.go     the NICs that a pod requests
//	observed.go  observed PodNICs, namespaces and plugged NICs
//	decide.go    whether all NICs of a pod can be plugged, and why not
//	wanted.go    the desired NICs of a running pod
//	state.go     the desired status of a PodNIC, and writing it
//	reason.go    why a NIC cannot be plugged, and what to do
//
// NICs owns the lock of the observed state. The rest does I/O without it:
//
//	nics.go      construction, the main loop, and watches
//	wait.go      waiting ADDs
//	plugs.go     plugging and unplugging
//	running.go   NICs of running pods
//	health.go    readiness of the node, and changes by other software
//	metrics.go   the metrics
package nics

// berthd's use of the Kubernetes API for NICs: it watches the node's PodNICs and the Namespaces that name a VPC for
// their pods, and reports in status.node. It reads no VPC and no Secret.
//
// +kubebuilder:rbac:groups=berth.dev,resources=podnics,verbs=get;list;watch
// +kubebuilder:rbac:groups=berth.dev,resources=podnics/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch
//
//go:generate controller-gen rbac:roleName=berthd paths=.;../podevents output:rbac:dir=../../../deploy/chart/files/rbac/port/berthd
