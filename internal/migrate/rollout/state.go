// Package rollout decides how the nodes of a cluster move from another network to Berth, and back. Decisions are functions
// of values: Next returns what to do next for what was observed. Run is the loop around it.
//
// A node is served by the former system while it has no label, by nobody while the label is Moving, and by Berth while it
// is Serving. The DaemonSets of both systems select nodes by it, so both never run on a node, whenever the tool is killed.
//
//	state.go     what is observed and recorded
//	next.go      what to do next
//	node.go      the steps of one node
//	run.go       the loop
//	affinity.go  the requirement on nodes that keeps the two DaemonSets apart
package rollout

import (
	"slices"

	"github.com/berthnet/berth/internal/migrate"
)

// Label is the key of the label of Nodes that says which system serves them.
const Label = "berth.dev/network"

// The values of Label. Nodes without it are the former system's.
const (
	Moving  = "moving" // neither system's
	Serving = "berth"
)

// Direction is where a node goes.
type Direction string

// The directions.
const (
	Apply    Direction = "apply"
	Rollback Direction = "rollback"
	Finish   Direction = "finish" // removes what the former system left; no way back
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

// State is what was observed of a cluster.
type State struct {
	From     string // the former system of the migration that was begun; empty if none was
	Former   DaemonSet
	Berthd   DaemonSet
	Restored bool // nothing of Former was changed, or it is as it was
	Nodes    []Node
}

// Node is what was observed of a node.
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

	Pods   []Pod  // those with an address of the pod network
	Tool   *Tool  // the pod of the node tool, if it exists
	Record Record // what the migration wrote about the node
}

// Pod is a pod with an address of the pod network.
type Pod struct {
	Namespace, Name, UID string
	// Bound is set if its controller creates it again on the same node.
	Bound bool
	// Unmanaged is set if no controller creates it again.
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

// Verbs of the node tool that are no directions.
const (
	Survey = "plan"
	Verify = "verify"
)

// Record is what the migration remembers about a node. Everything else is observed.
type Record struct {
	Direction Direction `json:"direction,omitempty"` // empty: the node was not begun, or is back
	Surveyed  bool      `json:"surveyed,omitempty"`  // the node tool saw no obstacle
	Cordoned  bool      `json:"cordoned,omitempty"`  // by the migration
	Applied   bool      `json:"applied,omitempty"`   // the node tool did what Direction says
	Replace   []string  `json:"replace,omitempty"`   // UIDs of pods that the arriving system cannot serve
	Verified  bool      `json:"verified,omitempty"`
	Finished  bool      `json:"finished,omitempty"`
	Adopted   int       `json:"adopted,omitempty"`  // pods that kept running
	Replaced  int       `json:"replaced,omitempty"` // pods that were evicted
}

// Options are a person's choices.
type Options struct {
	Direction      Direction
	InPlace        bool     // the node tool adopts pods; otherwise pods are replaced
	Verbs          []string // verbs of the node tool that the former system has
	Nodes          []string // only these, if any
	MaxUnavailable int      // number of nodes that move at a time
	EvictUnmanaged bool     // also evict pods that no controller creates again
	// Failed are the nodes that failed in this run, and why. They stay as they are, and no other node is begun.
	Failed map[string]string
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

// involved reports whether the node is, or was, the former system's.
func (n *Node) involved() bool {
	return n.Former != Absent || n.Label != "" || n.Record.Direction != ""
}

// Describe returns the state of a node for people, or "" if the migration does not concern it.
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
