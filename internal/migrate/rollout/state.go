// Package rollout decides how the nodes of a cluster move from another network to Berth, and back. Decisions are functions
// of values: Next returns the next actions for an observed state. Run is the loop around it.
//
// A node without the label belongs to the former system, with the value Moving to neither, and with Serving to Berth. The
// DaemonSets of both systems select nodes by the label, so they never run on the same node, even if the tool is killed.
//
//	state.go     the observed and the recorded state
//	next.go      the next actions
//	node.go      the steps of one node
//	run.go       the loop
//	affinity.go  the node affinity that separates the two DaemonSets
package rollout

import (
	"slices"

	"github.com/berthnet/berth/internal/migrate"
)

// Label is the key of the Node label that selects the system of a node.
const Label = "berth.dev/network"

// The values of Label. Nodes without it belong to the former system.
const (
	Moving  = "moving" // belongs to neither system
	Serving = "berth"
)

// Direction is the direction in which a node moves.
type Direction string

// The directions.
const (
	Apply    Direction = "apply"
	Rollback Direction = "rollback"
	Finish   Direction = "finish" // removes the former system's state; cannot be undone
)

// Daemon is the state of a daemon on a node.
type Daemon string

// The states of daemons.
const (
	Absent  Daemon = "absent"
	Present Daemon = "present" // its pod exists, or is being deleted
	Ready   Daemon = "ready"
)

// DaemonSet is the state of the DaemonSet of one of the two systems.
type DaemonSet struct {
	Name   string // namespace and name
	Exists bool
	// Confined is set if it runs on no node that the label keeps for the other system.
	Confined bool
}

// State is the observed state of a cluster.
type State struct {
	From     string // the former system of the recorded migration, or ""
	Former   DaemonSet
	Berthd   DaemonSet
	Restored bool // Former is unchanged or restored
	Nodes    []Node
}

// Node is the observed state of a node.
type Node struct {
	Name     string
	Label    string // value of Label
	Ready    bool
	Cordoned bool
	Tainted  bool // by the former system's controllers, because its daemon does not run
	Former   Daemon
	Berthd   Daemon
	// FormerControls and BerthControls are set while a controller of the cluster manages the node's addresses.
	FormerControls, BerthControls bool

	Pods   []Pod  // pods with an address of the pod network
	Tool   *Tool  // the pod of the node tool, if it exists
	Record Record // the migration's record of the node
}

// Pod is a pod with an address of the pod network.
type Pod struct {
	Namespace, Name, UID string
	// Bound is set if its controller recreates it on the same node.
	Bound bool
	// Unmanaged is set if no controller recreates it.
	Unmanaged bool
	// Ending is set once it is being deleted. It holds its address until it is gone.
	Ending bool
}

// Tool is a run of the node tool.
type Tool struct {
	Verb    string // plan, apply, rollback, finish or verify
	Running bool
	Err     string // why it failed
	Plan    *migrate.Plan
	Report  *migrate.Report
}

// Verbs of the node tool that are not directions.
const (
	Survey = "plan"
	Verify = "verify"
)

// Record is the recorded state of a node. Everything else is observed.
type Record struct {
	Direction Direction `json:"direction,omitempty"` // empty if the node was not started, or was moved back
	Surveyed  bool      `json:"surveyed,omitempty"`  // the node tool found no obstacle
	Cordoned  bool      `json:"cordoned,omitempty"`  // by the migration
	Applied   bool      `json:"applied,omitempty"`   // the node tool has completed Direction
	Replace   []string  `json:"replace,omitempty"`   // UIDs of pods that the arriving system cannot serve
	Verified  bool      `json:"verified,omitempty"`
	Finished  bool      `json:"finished,omitempty"`
	Adopted   int       `json:"adopted,omitempty"`  // pods that kept running
	Replaced  int       `json:"replaced,omitempty"` // pods that were evicted
}

// Options are the user's options.
type Options struct {
	Direction      Direction
	InPlace        bool     // the node tool adopts pods; otherwise pods are replaced
	Verbs          []string // verbs of the node tool that the former system has
	Nodes          []string // only these, if any
	MaxUnavailable int      // number of nodes that move at a time
	EvictUnmanaged bool     // also evict pods that no controller recreates
	// Failed are the nodes that failed in this run, and why. They stay as they are, and no further node is started.
	Failed map[string]string
	// ending is set once the record of the migration was deleted, perhaps without a reply.
	ending bool
}

func (o *Options) runs(verb string) bool { return slices.Contains(o.Verbs, verb) }

func (o *Options) selects(node string) bool {
	return len(o.Nodes) == 0 || slices.Contains(o.Nodes, node)
}

// done reports whether the node has reached the end of a direction.
func (n *Node) done(d Direction) bool {
	r := &n.Record
	switch d {
	case Apply:
		return r.Finished || r.Direction == Apply && r.Verified && n.Label == Serving && !r.Cordoned
	case Rollback:
		return r.Direction == "" && n.Label == ""
	default:
		return r.Finished
	}
}

// involved reports whether the node belongs, or belonged, to the former system.
func (n *Node) involved() bool {
	return n.Former != Absent || n.Label != "" || n.Record.Direction != ""
}

// Describe describes the state of a node, or returns "" if the migration does not concern it.
func Describe(n *Node) string {
	switch {
	case n.Record.Finished:
		return "finished"
	case n.done(Apply):
		return "moved"
	case n.Record.Direction == Apply:
		return "moving"
	case n.Record.Direction == Rollback:
		return "moving back"
	case n.Label != "":
		return "labelled by others"
	case n.Former != Absent:
		return "to be moved"
	}
	return ""
}
