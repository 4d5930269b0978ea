// Package diagnose explains why a pod, PodNIC or EgressClient does not work, and what to
// do about it. Its functions are pure: the caller reads the facts.
//
//	facts.go         inputs
//	verdict.go       results, and the order of the checks
//	before.go        pods that need no address, or whose node cannot assign one
//	address.go       pods with an address
//	operator.go      waiting for ENIs, in operator mode
//	pool.go          waiting for blocks of an address pool
//	waiting.go       waiting for an address, and failed ADDs
//	policies.go      network policies of a pod
//	podnics.go       NICs in VPCs of a pod
//	nic.go           one PodNIC
//	egressclient.go  Egresses of a pod, and one EgressClient
package diagnose

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/node/introspect"
)

// Facts are the inputs for the diagnosis of a pod.
type Facts struct {
	Now time.Time
	Pod *corev1.Pod

	Node      Fact[corev1.Node]      // the pod's
	Namespace Fact[corev1.Namespace] // the pod's
	Daemon    Fact[Daemon]           // berthd on the node
	Operators Fact[Operators]

	Answers // of berthd on the node

	NodeNetwork Fact[v1alpha1.NodeNetwork]    // of the node
	Pools       Fact[[]v1alpha1.AddressPool]  // all
	Requests    Fact[[]v1alpha1.BlockRequest] // of the node

	NICs Fact[[]v1alpha1.PodNIC]       // of the pod, or named by its annotation
	VPCs map[string]Fact[v1alpha1.VPC] // of those NICs, and the VPC that the pod requests

	EgressClient Fact[v1alpha1.EgressClient] // of the pod's name

	Events []corev1.Event // of the pod, oldest first
}

// Answers are what berthd of a node says.
type Answers struct {
	View     Fact[introspect.Pod]             // of the pod
	Document Fact[introspect.Document]        // of the node
	Policies Fact[introspect.NetworkPolicies] // of the node; absent if it enforces none
}

// Fact is the result of a read. The zero value means that the object does not exist.
type Fact[T any] struct {
	Value  *T
	Unread string // why the read failed, or ""
}

// Absent reports whether the object is known not to exist.
func (f Fact[T]) Absent() bool { return f.Value == nil && f.Unread == "" }

// Of returns the fact of a successful read.
func Of[T any](v T) Fact[T] { return Fact[T]{Value: &v} }

// Unread returns the fact of a failed read with its reason.
func Unread[T any](why string) Fact[T] { return Fact[T]{Unread: why} }

// Mode is the source of a node's addresses.
type Mode string

// The modes.
const (
	NodeMode     Mode = "node"     // ENIs, by the node's own daemon
	OperatorMode Mode = "operator" // ENIs, managed by berth-operator
	PoolMode     Mode = "pool"     // blocks of address pools
	PortMode     Mode = "port"     // ports of VPCs
	EgressMode   Mode = "egress"   // another network; Berth adds egress
)

// Daemon is the berthd of a node, as described by its pod.
type Daemon struct {
	Pod   string // name
	Mode  Mode
	Ready bool
	Why   string // why it is not ready
}

// Operators counts the pods of berth-operator.
type Operators struct {
	Ready, All int
}
