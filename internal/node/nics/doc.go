// Package nics gives pods NICs that are ports of a VPC. It waits until the operator has bound ports to this node for a
// pod, as PodNIC objects say, plugs them, and reports that in the PodNICs' status.
//
// Decisions are made on values in memory, without I/O:
//
//	object.go    what a PodNIC says, with its validation
//	wants.go     which NICs a pod asks for
//	observed.go  what is known of PodNICs, namespaces and plugged NICs
//	decide.go    whether a pod's NICs are all here, and why not
//	wanted.go    which NICs a running pod is to have by now
//	state.go     what a PodNIC's status is to say, and writing it
//	reason.go    why a NIC cannot be plugged, and what to do
//
// NICs owns the lock of the observed state. The rest does I/O without it:
//
//	nics.go      how it is made and run, and what is watched at the API server
//	wait.go      ADDs that wait
//	plugs.go     plugging and unplugging
//	running.go   NICs of pods that run
//	health.go    when the node is ready, and changes by other software
//	metrics.go   the metrics
package nics

// What berthd does in the Kubernetes API for NICs: it follows the node's PodNICs and the Namespaces that name a VPC for
// their pods, and reports in status.node. It reads no VPC and no Secret.
//
// +kubebuilder:rbac:groups=berth.dev,resources=podnics,verbs=get;list;watch
// +kubebuilder:rbac:groups=berth.dev,resources=podnics/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch
//
//go:generate controller-gen rbac:roleName=berthd paths=.;../podevents output:rbac:dir=../../../deploy/chart/files/rbac/port/berthd
