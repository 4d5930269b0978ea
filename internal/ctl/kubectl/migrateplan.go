package kubectl

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/internal/ctl/view"
	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/internal/migrate/rollout"
)

// MigrationPlan is the output of `kubectl berth migrate FROM plan -o json`.
type MigrationPlan struct {
	From      string             `json:"from"`
	DaemonSet string             `json:"daemonSet"`
	InPlace   bool               `json:"inPlace"` // pods keep running, except those that a node's plan replaces
	Nodes     []PlannedNode      `json:"nodes"`
	Steps     []migrate.Step     `json:"steps"`
	Obstacles []migrate.Obstacle `json:"obstacles"`
	Notes     []string           `json:"notes"`
	// LastUndoable is the last step that rollback undoes.
	LastUndoable string `json:"lastUndoable"`
	// Values are values of the chart with the meaning of the former system's settings.
	Values map[string]any `json:"values,omitempty"`
}

// PlannedNode is a node in a MigrationPlan.
type PlannedNode struct {
	Name     string             `json:"name"`
	State    string             `json:"state"`
	Pods     int                `json:"pods"`    // with an address of the pod network
	Adopt    *int               `json:"adopt"`   // pods that keep running; null if the node was not asked
	Replace  *int               `json:"replace"` // pods that are evicted; null if the node was not asked
	Found    []string           `json:"found"`
	Obstacle []migrate.Obstacle `json:"obstacles"`
	Plan     *migrate.Plan      `json:"plan,omitempty"` // of the node tool
}

// plan prints what a migration would do.
func (m *migration) plan(cmd *cobra.Command, f *migrateFlags) error {
	ctx := cmd.Context()
	s, err := m.see(ctx, true)
	if err != nil {
		return err
	}
	tools := map[string]*rollout.Tool{}
	if slices.Contains(m.from.verbs, rollout.Survey) && !f.noNodePods && s.Berthd.Exists {
		if tools, err = m.survey(ctx, cmd, s, rollout.Survey, f.nodes, func(n *rollout.Node) bool { return n.Former != rollout.Absent }); err != nil {
			return err
		}
	}
	var plan MigrationPlan
	err = m.patiently(ctx, func(ctx context.Context) error {
		plan = m.planned(s, f, tools)
		return m.planObjects(ctx, &plan)
	})
	if err != nil {
		return err
	}
	blocks := func(list []migrate.Obstacle) bool { return len(migrate.Plan{Obstacles: list}.Blocked()) > 0 }
	unwell := blocks(plan.Obstacles) || slices.ContainsFunc(plan.Nodes, func(n PlannedNode) bool { return blocks(n.Obstacle) })
	return f.out.finish(cmd, plan, unwell, plan.write)
}

// planObjects adds the plan for the former system's objects and settings.
func (m *migration) planObjects(ctx context.Context, plan *MigrationPlan) error {
	if m.from.values != nil {
		var remarks []string
		plan.Values, remarks = m.from.values(settingsOf(&m.formerSpec))
		plan.Notes = append(plan.Notes, remarks...)
	}
	if m.from.objects == nil {
		return nil
	}
	o, err := m.from.objects(m)
	if err != nil {
		return err
	}
	of, err := o.Plan(ctx)
	if err != nil {
		return err
	}
	plan.Notes = append(plan.Notes, of.Found...)
	plan.Obstacles = append(plan.Obstacles, of.Obstacles...)
	for i, s := range of.Steps { // those that cannot be undone belong to finish
		if at := len(plan.Steps); s.Final {
			plan.Steps = append(plan.Steps, s)
		} else {
			plan.Steps = slices.Insert(plan.Steps, min(i, at), s)
		}
	}
	return nil
}

// survey runs the node tool on the chosen nodes, as many at a time as --parallel says, and deletes its pods.
func (m *migration) survey(ctx context.Context, cmd *cobra.Command, s *seen, verb string, only []string, chosen func(*rollout.Node) bool) (map[string]*rollout.Tool, error) {
	out := map[string]*rollout.Tool{}
	var left []string
	for i := range s.Nodes {
		if n := &s.Nodes[i]; chosen(n) && n.Ready && (len(only) == 0 || slices.Contains(only, n.Name)) {
			left = append(left, n.Name)
		}
	}
	done, end := m.progress(cmd, len(left))
	defer end()
	all := len(left)
	var running []string
	started := map[string]time.Time{}
	for len(left)+len(running) > 0 {
		for len(left) > 0 && len(running) < m.parallel {
			node := left[0]
			left = left[1:]
			if err := m.patiently(ctx, func(ctx context.Context) error { return m.startSurvey(ctx, node, verb) }); err != nil {
				return nil, err
			}
			running = append(running, node)
			started[node] = m.clock.Now()
		}
		var pods map[string]corev1.Pod
		err := m.patiently(ctx, func(ctx context.Context) error {
			a := &api{rest: m.api.rest}
			pods = m.toolPods(ctx, a)
			return a.err()
		})
		if err != nil {
			return nil, err
		}
		running = slices.DeleteFunc(running, func(node string) bool {
			pod, has := pods[node]
			t := m.surveyed(ctx, &pod, has, verb, started[node])
			if !t.Running {
				out[node] = t
				done(len(out))
			}
			return !t.Running
		})
		for node := range out {
			if err := m.patiently(ctx, func(ctx context.Context) error {
				return m.Do(ctx, rollout.Action{Kind: rollout.DiscardTool, Node: node})
			}); err != nil {
				return nil, fmt.Errorf("delete the node tool's pod on Node %s: %w", node, err)
			}
		}
		if len(out) < all {
			select {
			case <-m.clock.After(time.Second):
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
	}
	return out, nil
}

// startSurvey runs the node tool on a node. It deletes the pod of an earlier call, whose result is outdated.
func (m *migration) startSurvey(ctx context.Context, node, verb string) error {
	if err := m.Do(ctx, rollout.Action{Kind: rollout.DiscardTool, Node: node}); err != nil {
		return fmt.Errorf("discard the node tool's pod on Node %s: %w", node, err)
	}
	if err := m.Do(ctx, rollout.Action{Kind: rollout.StartTool, Node: node, Value: verb}); err != nil {
		return fmt.Errorf("run the node tool on Node %s: %w", node, err)
	}
	return nil
}

// surveyed returns the state of the node tool that was started at the given time. exists reports whether its pod was listed.
func (m *migration) surveyed(ctx context.Context, pod *corev1.Pod, exists bool, verb string, started time.Time) *rollout.Tool {
	t := &rollout.Tool{Verb: verb, Running: true}
	if exists {
		err := m.patiently(ctx, func(ctx context.Context) (err error) {
			t, err = m.toolState(ctx, pod)
			return err
		})
		if err != nil {
			t = &rollout.Tool{Verb: verb, Err: view.Printable(err.Error())}
		}
	}
	if t.Running && m.clock.Now().Sub(started) > surveyPatience {
		t = &rollout.Tool{Verb: verb, Err: fmt.Sprintf("its pod has not ended within %v", surveyPatience)}
	}
	return t
}

// surveyPatience is how long the node tool may take to read a node's state, with the start of its pod.
const surveyPatience = 3 * time.Minute

// planned assembles the plan.
func (m *migration) planned(s *seen, f *migrateFlags, tools map[string]*rollout.Tool) MigrationPlan {
	plan := MigrationPlan{
		From: m.from.name, DaemonSet: s.Former.Name, InPlace: m.from.inPlace, Nodes: []PlannedNode{}, Obstacles: []migrate.Obstacle{}, Notes: append([]string{}, m.from.notes...),
		LastUndoable: "apply, until apply --finish starts",
	}
	o := rollout.Options{Direction: rollout.Apply, InPlace: m.from.inPlace, Verbs: m.from.verbs, Nodes: f.nodes, MaxUnavailable: len(s.Nodes) + 1, EvictUnmanaged: f.evictUnmanaged}
	if d := rollout.Next(s.State, m.from.name, o); d.Refused != "" {
		plan.Obstacles = append(plan.Obstacles, migrate.Obstacle{What: d.Refused, Remedy: "apply is refused until this is resolved.", Blocks: true})
	}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		state := rollout.Describe(n)
		if state == "" || len(f.nodes) > 0 && !slices.Contains(f.nodes, n.Name) {
			continue
		}
		row := PlannedNode{Name: n.Name, State: state, Pods: len(n.Pods), Found: []string{}, Obstacle: []migrate.Obstacle{}}
		if !m.from.inPlace {
			row.Adopt, row.Replace = new(0), new(len(n.Pods))
		}
		for _, why := range o.Obstacles(n) {
			row.Obstacle = append(row.Obstacle, migrate.Obstacle{What: why, Remedy: "apply does not change the node until this is resolved.", Blocks: true})
		}
		switch t := tools[n.Name]; {
		case t == nil:
		case t.Plan != nil:
			p := t.Plan.Complete()
			row.Plan, row.Found = &p, p.Found
			row.Adopt, row.Replace = new(migrate.Count(p.Pods, migrate.Adopt)+migrate.Count(p.Pods, migrate.Adopted)), new(migrate.Count(p.Pods, migrate.Replace))
			row.Obstacle = append(row.Obstacle, p.Obstacles...)
		default:
			row.Obstacle = append(row.Obstacle, migrate.Obstacle{What: "the node tool: " + t.Err, Remedy: "See the log of berthd and the events of the pod.", Blocks: true})
		}
		plan.Nodes = append(plan.Nodes, row)
	}
	plan.Steps = m.steps(s)
	return plan
}

// steps returns the steps of apply, and of apply --finish.
func (m *migration) steps(s *seen) []migrate.Step {
	moves := "the node tool takes its running pods over"
	if !m.from.inPlace {
		moves = "its pods are evicted within their PodDisruptionBudgets, and what " + m.from.name + " left is removed"
	}
	return []migrate.Step{
		{Name: "confine", What: fmt.Sprintf("DaemonSet %s keeps away from nodes with the label %s; its running pods are not restarted", s.Former.Name, rollout.Label), Done: s.Former.Confined},
		{Name: "move", What: fmt.Sprintf("node by node: the label %s=%s ends its %s, %s, the label %s=%s starts berthd", rollout.Label, rollout.Moving, m.formerName, moves, rollout.Label, rollout.Serving)},
		{Name: "verify", What: "each pod's address has exactly one owner, and each pod answers its node"},
		{Name: "finish", What: fmt.Sprintf("apply --finish removes what %s left on nodes, and DaemonSet %s", m.from.name, s.Former.Name), Final: true},
	}
}

func (plan MigrationPlan) write(p *view.Printer, wide bool) {
	p.Printf("Migration from %s (DaemonSet %s)\n", plan.From, plan.DaemonSet)
	number := func(n *int) any {
		if n == nil {
			return "?"
		}
		return *n
	}
	p.Section("Nodes", view.GridOf(plan.Nodes, func(n PlannedNode) []any {
		return []any{n.Name, n.State, n.Pods, number(n.Adopt), number(n.Replace), len(n.Obstacle)}
	}, "NODE", "STATE", "PODS", "IN PLACE", "REPLACED", "OBSTACLES"), "none")
	p.Printf("\nSteps\n")
	for i, s := range plan.Steps {
		p.Printf("  %d. %s: %s%s\n", i+1, s.Name, s.What, s.Remark())
	}
	p.Printf("\nrollback undoes %s.\n", plan.LastUndoable)
	for _, n := range plan.Notes {
		p.Printf("%s\n", n)
	}
	if len(plan.Values) > 0 {
		p.Printf("\nValues of the chart\n")
		text, _ := yaml.Marshal(plan.Values) // texts and maps of texts
		for line := range strings.Lines(string(text)) {
			p.Printf("  %s\n", strings.TrimSuffix(line, "\n"))
		}
	}
	for _, o := range plan.Obstacles {
		writeObstacle(p, "cluster", o)
	}
	for _, n := range plan.Nodes {
		if wide {
			for _, found := range n.Found {
				p.Printf("\n%s: %s\n", n.Name, found)
			}
		}
		for _, o := range n.Obstacle {
			writeObstacle(p, n.Name, o)
		}
	}
}

func writeObstacle(p *view.Printer, of string, o migrate.Obstacle) {
	tone := view.Warn
	if o.Blocks {
		tone = view.Bad
	}
	p.Printf("\n%s %s\n", view.Toned{Text: "! " + of + ":", Tone: tone}, o.What)
	if o.Remedy != "" {
		p.Printf("  What to do: %s\n", o.Remedy)
	}
}

// Migration is the output of apply and rollback.
type Migration struct {
	From    string      `json:"from"`
	Command string      `json:"command"`
	Log     []string    `json:"log"` // what was done and waited for
	Nodes   []MovedNode `json:"nodes"`
}

// MovedNode is a node after apply or rollback.
type MovedNode struct {
	Name     string `json:"name"`
	State    string `json:"state"`
	Adopted  int    `json:"adopted"`  // pods that kept running
	Replaced int    `json:"replaced"` // pods that were evicted
}

// fill adds the nodes. After a finish the records are deleted, and the labels remain.
func (r *Migration) fill(s *rollout.State) {
	finished := r.Command == string(rollout.Finish) && s.From == ""
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if finished && n.Label == rollout.Serving {
			n.Record.Finished = true
		}
		if state := rollout.Describe(n); state != "" {
			r.Nodes = append(r.Nodes, MovedNode{n.Name, state, n.Record.Adopted, n.Record.Replaced})
		}
	}
}

func (r *Migration) write(p *view.Printer, _ bool) {
	p.Section("Nodes", view.GridOf(r.Nodes, func(n MovedNode) []any { return []any{n.Name, n.State, n.Adopted, n.Replaced} }, "NODE", "STATE", "ADOPTED", "REPLACED"), "none")
}
