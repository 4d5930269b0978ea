package rollout

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berthnet/berth/internal/migrate"
)

// node adds the next action, or wait, of a node in progress.
func (o *Options) node(d *Decision, n *Node) {
	if o.Failed[n.Name] != "" {
		return
	}
	if o.Direction == Finish {
		o.finish(d, n)
		return
	}
	leaving, arriving, label, who := n.Former, n.Berthd, Serving, "berthd"
	if o.Direction == Rollback {
		leaving, arriving, label, who = n.Berthd, n.Former, "", "the former daemon"
	}
	r := &n.Record
	switch {
	case !r.Surveyed:
		o.tool(d, n, Survey)
	case !r.Applied && !o.switchOff(d, n, leaving, arriving):
	case !r.Applied && o.runs(string(o.Direction)):
		o.tool(d, n, string(o.Direction))
	case !r.Applied:
		d.Actions = append(d.Actions, write(n, with(*r, func(r *Record) { r.Applied = true }), ""))
	case n.Label == label && leaving != Absent:
		d.Failed[n.Name] = bothRun
	case leaving != Absent:
		d.wait(n, "the other daemon to end")
	case n.Label != label:
		d.Actions = append(d.Actions, Action{Kind: SetLabel, Node: n.Name, Value: label, What: who + " may start"})
	case arriving != Ready:
		d.wait(n, who+" to be ready")
	default:
		o.settle(d, n)
	}
}

// settle adds the next action, or wait, of a node that the arriving system serves.
func (o *Options) settle(d *Decision, n *Node) {
	r := &n.Record
	switch {
	case !n.Ready:
		d.wait(n, "the Node to be Ready")
	case n.Tainted && o.Direction == Apply:
		d.Actions = append(d.Actions, Action{Kind: Untaint, Node: n.Name, What: "lost the taint of the former system"})
	case r.Cordoned && n.Cordoned:
		d.Actions = append(d.Actions, Action{Kind: Uncordon, Node: n.Name, What: "new pods may come"})
	case r.Cordoned:
		d.Actions = append(d.Actions, write(n, with(*r, func(r *Record) { r.Cordoned = false }), ""))
	case o.evict(d, n, func(p Pod) bool { return slices.Contains(r.Replace, p.UID) }):
	case o.Direction == Rollback:
		d.Actions = append(d.Actions, write(n, Record{}, "is back"))
	case !r.Verified && o.runs(Verify):
		o.tool(d, n, Verify)
	case !r.Verified:
		d.Actions = append(d.Actions, write(n, with(*r, func(r *Record) { r.Verified = true }), "moved"))
	}
}

// switchOff stops the leaving system on the node, and reports whether neither system runs on it.
func (o *Options) switchOff(d *Decision, n *Node, leaving, arriving Daemon) bool {
	r, leaves, controlled := &n.Record, "the former daemon", n.FormerControls
	if o.Direction == Rollback {
		leaves, controlled = "berthd", n.BerthControls
	}
	switch {
	case !o.InPlace && !r.Cordoned && !n.Cordoned: // recorded first: uncordoned only if the migration cordoned it
		d.Actions = append(d.Actions, write(n, with(*r, func(r *Record) { r.Cordoned = true }), ""))
	case !o.InPlace && r.Cordoned && !n.Cordoned:
		d.Actions = append(d.Actions, Action{Kind: Cordon, Node: n.Name, What: "takes no new pods"})
	case !o.InPlace && n.Label != Moving && o.evict(d, n, func(p Pod) bool { return !p.Bound }):
	case n.Label != Moving:
		d.Actions = append(d.Actions, Action{Kind: SetLabel, Node: n.Name, Value: Moving, What: "belongs to neither system"})
	case leaving != Absent:
		d.wait(n, leaves+" to end")
	case arriving != Absent: // it ran before the label was set
		d.wait(n, "both daemons to end")
	case !o.InPlace && o.evict(d, n, func(Pod) bool { return true }): // recreated pods get no address on the node now
	case controlled:
		d.Actions = append(d.Actions, Action{Kind: Fence, Node: n.Name, Value: string(o.Direction), What: "the leaving system's operator no longer manages it"})
	default:
		return true
	}
	return false
}

// evict evicts the chosen pods, and reports whether some are still there.
func (o *Options) evict(d *Decision, n *Node, chosen func(Pod) bool) bool {
	var pods []Pod
	for _, p := range n.Pods {
		if chosen(p) {
			pods = append(pods, p)
		}
	}
	if why := o.unmanaged(pods); why != "" {
		d.Failed[n.Name] = why
		return true
	}
	for _, p := range pods {
		if p.Ending {
			continue
		}
		d.Actions = append(d.Actions, Action{Kind: Evict, Node: n.Name, Pod: p, What: fmt.Sprintf("evicted pod %s/%s", p.Namespace, p.Name)})
	}
	if len(pods) > 0 {
		d.wait(n, fmt.Sprintf("%d pods to end", len(pods)))
	}
	return len(pods) > 0
}

// unmanaged returns why pods may not be evicted, or "".
func (o *Options) unmanaged(pods []Pod) string {
	i := slices.IndexFunc(pods, func(p Pod) bool { return p.Unmanaged && !p.Ending })
	if i < 0 || o.EvictUnmanaged {
		return ""
	}
	return fmt.Sprintf("pod %s/%s must be replaced, and no controller would create it again: delete it, or use --evict-unmanaged", pods[i].Namespace, pods[i].Name)
}

// Obstacles returns the obstacles to moving a node that are known without the node tool.
func (o *Options) Obstacles(n *Node) (all []string) {
	if n.Record.Direction != "" {
		return nil
	}
	if why := o.unfit(n); why != "" {
		all = append(all, why)
	}
	if why := o.unmanaged(n.Pods); why != "" && !o.InPlace {
		all = append(all, why)
	}
	return all
}

// tool runs the node tool, and processes its result.
func (o *Options) tool(d *Decision, n *Node, verb string) {
	t := n.Tool
	switch {
	case t == nil:
		d.Actions = append(d.Actions, Action{Kind: StartTool, Node: n.Name, Value: verb})
		return
	case t.Verb != verb: // of an earlier step, whose result was processed
		d.Actions = append(d.Actions, Action{Kind: DiscardTool, Node: n.Name})
		return
	case t.Running:
		d.wait(n, "berthctl migrate "+verb)
		return
	}
	if why := t.Problems(); len(why) > 0 {
		d.Failed[n.Name] = "berthctl migrate " + verb + ": " + strings.Join(why, "; ")
		d.Actions = append(d.Actions, Action{Kind: DiscardTool, Node: n.Name})
		return
	}
	what := ""
	r := with(n.Record, func(r *Record) {
		switch verb {
		case Survey:
			r.Surveyed = true
		case Verify:
			r.Verified, r.Replace = true, nil
			what = "moved and verified"
		case string(Finish):
			r.Finished = true
			what = "the former system's state is removed"
			if kept := t.Report.Kept; len(kept) > 0 {
				what = "the former system's state is removed, except " + strings.Join(kept, "; ")
			}
		default:
			r.Applied, r.Replace, r.Adopted = true, replaced(n, t.Report.Pods), migrate.Count(t.Report.Pods, migrate.Adopted)
			r.Replaced += len(r.Replace)
			what = fmt.Sprintf("adopted %d pods, %d are to be replaced", r.Adopted, len(r.Replace))
			if verb == string(Rollback) {
				what = "gave its pods back"
			}
		}
	})
	d.Actions = append(d.Actions, write(n, r, what), Action{Kind: DiscardTool, Node: n.Name})
}

// Problems returns the reasons why a run of the node tool failed.
func (t *Tool) Problems() (all []string) {
	switch {
	case t.Err != "":
		return []string{t.Err}
	case t.Verb == Survey && t.Plan == nil, t.Verb != Survey && t.Report == nil:
		return []string{"its answer is not of this command"}
	case t.Verb == Survey:
		for _, o := range t.Plan.Blocked() {
			all = append(all, o.What+": "+o.Remedy)
		}
		return all
	default:
		return t.Report.Problems
	}
}

func (o *Options) finish(d *Decision, n *Node) {
	if o.runs(string(Finish)) {
		o.tool(d, n, string(Finish))
		return
	}
	d.Actions = append(d.Actions, write(n, with(n.Record, func(r *Record) { r.Finished = true }), "finished"))
}

func (d *Decision) wait(n *Node, what string) { d.Waits = append(d.Waits, Wait{n.Name, what}) }

// with returns a changed copy of a record.
func with(r Record, change func(*Record)) Record {
	change(&r)
	return r
}
