// Package diagnose tells from what is known of a pod why it has no address, or
// whether the one that it has works: a function of values. What is to be known
// is read elsewhere.
//
//	facts.go     what is looked at
//	diagnose.go  in which order
//	verdict.go   what may come out
//	before.go    the pod is not to have an address, or nobody can give one yet
//	address.go   the pod has one
//	operator.go  it waits for the operator's ENIs
//	pool.go      it waits for a pool's blocks
//	waiting.go   it waits, or was refused
//	podnics.go   its NICs that are ports of VPCs
//	nic.go       one such NIC by itself
//	podegress.go     the Egresses that it is to use
//	egressclient.go  what its EgressClient says of them
package diagnose

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/node/introspect"
)

// Facts are what is known of a pod and of what it depends on.
type Facts struct {
	Now time.Time
	Pod *corev1.Pod

	Node      Fact[corev1.Node]      // that the pod is on
	Namespace Fact[corev1.Namespace] // the pod's
	Daemon    Fact[Daemon]           // berthd of the node
	Operators Fact[Operators]

	View     Fact[introspect.Pod]      // the daemon's answer about the pod
	Document Fact[introspect.Document] // and about its node

	NodeNetwork Fact[v1alpha1.NodeNetwork]    // of the node
	Pools       Fact[[]v1alpha1.AddressPool]  // all
	Requests    Fact[[]v1alpha1.BlockRequest] // of the node

	NICs Fact[[]v1alpha1.PodNIC]       // of the pod, or that its annotation names
	VPCs map[string]Fact[v1alpha1.VPC] // of those, and that the pod's are to be in

	EgressClient Fact[v1alpha1.EgressClient] // of the pod's name

	Events []corev1.Event // of the pod, oldest first
}

// Fact is something that was looked for. With neither field set it is not there.
type Fact[T any] struct {
	Value  *T
	Unread string // why it is not known; empty where it is
}

// Absent tells that a fact is known and that it is not there.
func (f Fact[T]) Absent() bool { return f.Value == nil && f.Unread == "" }

// Of is a fact that is known.
func Of[T any](v T) Fact[T] { return Fact[T]{Value: &v} }

// Unread is a fact that is not known, and why.
func Unread[T any](why string) Fact[T] { return Fact[T]{Unread: why} }

// Mode is where a node's addresses come from.
type Mode string

// The modes.
const (
	NodeMode     Mode = "node"     // ENIs, by the node's own daemon
	OperatorMode Mode = "operator" // ENIs, by berth-operator
	PoolMode     Mode = "pool"     // blocks of address pools
	PortMode     Mode = "port"     // ports of VPCs
	EgressMode   Mode = "egress"   // another network: Berth adds egress to it
)

// Daemon is the berthd of a node, as its pod tells.
type Daemon struct {
	Pod   string // name
	Mode  Mode
	Ready bool
	Why   string // not
}

// Operators are the pods of berth-operator.
type Operators struct {
	Ready, All int
}
