package rollout

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/berthnet/berth/internal/migrate"
)

// Kind is the kind of an action. Each can be repeated.
type Kind string

// The kinds of actions.
const (
	Begin        Kind = "begin"         // record the migration, before anything is changed
	Confine      Kind = "confine"       // keep the former DaemonSet from labelled nodes
	Restore      Kind = "restore"       // undo Confine
	End          Kind = "end"           // delete the record of the migration
	DeleteFormer Kind = "delete former" // delete the former DaemonSet
	Write        Kind = "write"         // write Record
	SetLabel     Kind = "label"         // set Label to Value; empty removes it
	Cordon       Kind = "cordon"        //
	Uncordon     Kind = "uncordon"      //
	Evict        Kind = "evict"         // evict Pod
	Fence        Kind = "fence"         // make the leaving system's controllers ignore the node; Value is the direction
	Untaint      Kind = "untaint"       // remove the taint of the former system
	StartTool    Kind = "start tool"    // run the node tool with the verb Value
	DiscardTool  Kind = "discard tool"  // delete the node tool's pod
)

// Action is a change to make.
type Action struct {
	Kind   Kind
	Node   string // empty for the whole cluster
	Value  string
	Pod    Pod
	Record Record // for Write
	What   string // description for the user; empty if it is not shown
}

// Wait describes something to wait for.
type Wait struct{ Node, What string }

// Decision contains the next actions for a State.
type Decision struct {
	Actions []Action
	Waits   []Wait
	Failed  map[string]string // nodes that cannot continue, with the reason
	Skipped map[string]string // nodes that cannot be started, with the reason
	Refused string            // why nothing is done at all
	Done    bool              // nothing is left to do, except for failed nodes
}

// Next returns the next actions. They must be performed in order, and the first error ends the round.
func Next(s State, from string, o Options) Decision {
	if why := refuse(&s, from, &o); why != "" {
		return Decision{Refused: why}
	}
	d := Decision{Failed: map[string]string{}, Skipped: map[string]string{}}
	if s.From == "" && o.Direction == Rollback { // refuse found no trace of a migration
		d.Done = true
		return d
	}
	if first := o.prepare(&s); first != nil {
		d.Actions = []Action{*first}
		return d
	}
	left := o.nodes(&d, s.Nodes)
	if len(d.Actions)+len(d.Waits)+len(d.Failed) > 0 {
		return d
	}
	if last := o.last(&s); !left && len(o.Failed)+len(d.Skipped) == 0 && last != nil {
		d.Actions = append(d.Actions, *last)
		return d
	}
	d.Done = true
	return d
}

// nodes adds actions for nodes, starting with those in progress, and reports whether any work is left.
func (o *Options) nodes(d *Decision, nodes []Node) (left bool) {
	moving := 0
	for i := range nodes {
		if n := &nodes[i]; o.concerns(n) && o.begun(n) {
			moving++
			o.node(d, n)
			left = true
		}
	}
	for i := range nodes {
		n := &nodes[i]
		under := o.concerns(n) && o.begun(n)
		if !under && n.Tool != nil { // its result was processed, or is not needed
			d.Actions = append(d.Actions, Action{Kind: DiscardTool, Node: n.Name})
		}
		if under || !o.concerns(n) {
			continue
		}
		if why := o.unfit(n); why != "" {
			d.Skipped[n.Name] = why
			continue
		}
		left = true
		if len(o.Failed)+len(d.Failed) == 0 && moving < o.MaxUnavailable {
			moving++
			d.Actions = append(d.Actions, o.begin(n))
		}
	}
	return left
}

// concerns reports whether the run has something to do for the node.
func (o *Options) concerns(n *Node) bool {
	if !o.selects(n.Name) || !n.involved() || n.done(o.Direction) {
		return false
	}
	return o.Direction == Apply || n.Record.Direction != "" || n.Label != ""
}

// begun reports whether the node is in progress in the direction of the run.
func (o *Options) begun(n *Node) bool {
	return n.Record.Direction == o.Direction || o.Direction == Finish && n.Record.Direction == Apply
}

// refuse returns why nothing may be done: an obstacle that concerns the whole cluster.
func refuse(s *State, from string, o *Options) string {
	if why := cmp.Or(refuseSystems(s, from, o), refuseNodes(s, from, o)); why != "" {
		return why
	}
	for _, name := range o.Nodes {
		if i := slices.IndexFunc(s.Nodes, func(n Node) bool { return n.Name == name }); i < 0 {
			return fmt.Sprintf("there is no Node %q", name)
		}
	}
	return ""
}

// refuseSystems returns why the state of the DaemonSets permits nothing, or "".
func refuseSystems(s *State, from string, o *Options) string {
	switch {
	case s.From != "" && s.From != from:
		return fmt.Sprintf("a migration from %s is in progress: roll it back or finish it first", s.From)
	case !s.Berthd.Exists:
		return fmt.Sprintf("DaemonSet %s does not exist: install Berth with the chart value migration.from=%s", s.Berthd.Name, from)
	case !s.Former.Exists && s.From == "" && o.Direction != Rollback:
		return fmt.Sprintf("DaemonSet %s does not exist: there is nothing to migrate from %s, or its DaemonSet has another name (--daemonset)", s.Former.Name, from)
	case !s.Former.Exists && s.From != "" && o.Direction != Finish:
		return fmt.Sprintf("DaemonSet %s no longer exists: install it as it was, or end the migration with apply --finish", s.Former.Name)
	case !s.Berthd.Confined && s.Former.Exists:
		return fmt.Sprintf("DaemonSet %s would run on nodes that %s serves: set the chart value migration.from=%s", s.Berthd.Name, s.Former.Name, from)
	}
	return ""
}

// refuseNodes returns why the state of nodes does not permit the direction, or "".
func refuseNodes(s *State, from string, o *Options) string {
	finished := slices.IndexFunc(s.Nodes, func(n Node) bool { return n.Record.Finished })
	labelled := slices.IndexFunc(s.Nodes, func(n Node) bool { return n.Label != "" })
	unmoved := slices.IndexFunc(s.Nodes, func(n Node) bool { return n.involved() && !n.done(Apply) })
	switch {
	case o.Direction == Finish && s.From == "":
		return "no migration was begun"
	case o.Direction == Rollback && finished >= 0:
		return fmt.Sprintf("apply --finish has removed the state of %s from node %s: the migration cannot be undone", from, s.Nodes[finished].Name)
	case o.Direction == Finish && unmoved >= 0:
		return fmt.Sprintf("node %s is not moved and verified: run apply first", s.Nodes[unmoved].Name)
	case o.Direction == Rollback && s.From == "" && labelled >= 0:
		return fmt.Sprintf("node %s has the label %s, but no migration is recorded that could be rolled back", s.Nodes[labelled].Name, Label)
	}
	return ""
}

// prepare returns what must be done before any node is changed.
func (o *Options) prepare(s *State) *Action {
	switch {
	case o.Direction == Finish:
		return nil
	case s.From == "":
		return &Action{Kind: Begin, What: "recorded the migration"}
	case !s.Former.Confined && slices.ContainsFunc(s.Nodes, func(n Node) bool { return !n.done(o.Direction) && n.involved() || n.Label != "" }):
		return &Action{Kind: Confine, What: fmt.Sprintf("DaemonSet %s keeps away from nodes with the label %s", s.Former.Name, Label)}
	}
	return nil
}

// last returns the next action after all nodes are done, or nil.
func (o *Options) last(s *State) *Action {
	rest := func(d Direction) bool {
		return slices.ContainsFunc(s.Nodes, func(n Node) bool { return n.involved() && !n.done(d) })
	}
	switch {
	case o.Direction == Apply, s.From == "", rest(o.Direction):
		return nil
	case o.Direction == Rollback && !s.Restored:
		return &Action{Kind: Restore, What: fmt.Sprintf("DaemonSet %s is as it was", s.Former.Name)}
	case o.Direction == Finish && s.Former.Exists:
		return &Action{Kind: DeleteFormer, What: fmt.Sprintf("deleted DaemonSet %s", s.Former.Name)}
	default:
		return &Action{Kind: End}
	}
}

// unfit returns why a node cannot be started, or "".
func (o *Options) unfit(n *Node) string {
	foreign := n.Record.Direction == "" && n.Label != "" // somebody else set the label, such as the node's kubelet
	switch {
	case foreign && (o.Direction != Apply || n.Label != Serving):
		return fmt.Sprintf("its label %s=%q was not set by this migration: remove the label", Label, n.Label)
	case n.Former != Absent && n.Berthd != Absent:
		return bothRun
	case !n.Ready && o.Direction == Apply && n.Record.Direction == "":
		return "the Node is not Ready"
	}
	return ""
}

const bothRun = "the daemons of both systems run, and both would assign addresses"

// begin returns the first action for a node.
func (o *Options) begin(n *Node) Action {
	r := Record{Direction: o.Direction, Surveyed: !o.runs(Survey), Cordoned: n.Record.Cordoned}
	switch {
	case o.Direction == Rollback:
		r.Surveyed, r.Applied = true, n.Label == "" // nothing has been moved yet
	case n.Record.Direction == "" && n.Label != "": // it registered with the label, or its kubelet has set it: the node tool verifies it
		r.Surveyed, r.Applied = true, true
	}
	return write(n, r, "begun")
}

func write(n *Node, r Record, what string) Action {
	return Action{Kind: Write, Node: n.Name, Record: r, What: what}
}

// replaced returns the UIDs of pods that the arriving system cannot serve according to a report, and that are on the node
// according to the API server: a node's report must not cause evictions of pods of other nodes.
func replaced(n *Node, pods []migrate.Pod) (uids []string) {
	for _, p := range pods {
		i := slices.IndexFunc(n.Pods, func(of Pod) bool { return of.Namespace == p.Namespace && of.Name == p.Name })
		if p.Fate == migrate.Replace && i >= 0 && !slices.Contains(uids, n.Pods[i].UID) {
			uids = append(uids, n.Pods[i].UID)
		}
	}
	return uids
}
