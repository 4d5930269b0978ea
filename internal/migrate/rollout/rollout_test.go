package rollout

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/migrate"
)

// world is a cluster in memory: DaemonSets follow labels, pods that are evicted come again elsewhere, and each node has a
// node tool. check is called after every change.
type world struct {
	State
	rand     *rand.Rand
	inPlace  bool
	pods     int // ever created
	evicted  []string
	owner    map[string]string // by UID: the system that gave the pod its address
	kernel   map[string]string // by node: the system that its pods' kernel state is of
	ended    bool
	changes  int
	killAt   int  // the change at which the tool is killed; 0 for never
	late     bool // it is killed after the change
	budget   map[string]int
	problems []string
	verify   []string // problems that the node tool finds
	obstacle []migrate.Obstacle
}

var errKilled = errors.New("killed")

func newWorld(seed uint64, inPlace bool, nodes int) *world {
	w := &world{rand: rand.New(rand.NewPCG(seed, 1)), inPlace: inPlace, kernel: map[string]string{}, owner: map[string]string{}, budget: map[string]int{}}
	w.State = State{Former: DaemonSet{Name: "kube-system/aws-node", Exists: true}, Berthd: DaemonSet{Name: "kube-system/berthd", Exists: true, Confined: true}, Restored: true}
	for i := range nodes {
		n := Node{Name: fmt.Sprintf("node-%d", i), Ready: true, Former: Ready, Berthd: Absent, FormerControls: !inPlace}
		w.kernel[n.Name] = "former"
		w.Nodes = append(w.Nodes, n)
		for range 3 {
			w.create(&w.Nodes[i], false)
		}
		w.create(&w.Nodes[i], true)
	}
	return w
}

func (w *world) create(n *Node, bound bool) {
	w.pods++
	w.owner[fmt.Sprintf("uid-%d", w.pods)] = "former"
	if n.Berthd == Ready {
		w.owner[fmt.Sprintf("uid-%d", w.pods)] = "berth"
	}
	n.Pods = append(n.Pods, Pod{Namespace: "default", Name: fmt.Sprintf("pod-%d", w.pods), UID: fmt.Sprintf("uid-%d", w.pods), Bound: bound})
}

func (w *world) node(name string) *Node {
	return &w.Nodes[slices.IndexFunc(w.Nodes, func(n Node) bool { return n.Name == name })]
}

// controllers lets DaemonSet controllers, kubelets and tools act.
func (w *world) controllers() {
	towards := func(d Daemon, wanted bool) Daemon {
		switch {
		case w.rand.IntN(2) == 0:
			return d
		case wanted && d == Absent:
			return Present
		case wanted:
			return Ready
		case d == Ready:
			return Present
		default:
			return Absent
		}
	}
	for i := range w.Nodes {
		n := &w.Nodes[i]
		n.Former = towards(n.Former, w.Former.Exists && (n.Label == "" || !w.Former.Confined))
		n.Berthd = towards(n.Berthd, n.Label == Serving)
		if n.Tool != nil && w.rand.IntN(2) == 0 {
			n.Tool.Running = false
		}
		if n.Berthd == Ready {
			n.BerthControls = true
		}
		if n.Former == Ready && !w.inPlace {
			n.FormerControls, n.Tainted = true, false
		}
		if n.Former == Present && n.FormerControls { // it is ending, or starts
			n.Tainted = true
		}
	}
	w.check()
}

// check finds violations of what must hold at any time.
func (w *world) check() {
	away := 0
	for _, n := range w.Nodes {
		if n.Former != Absent && n.Berthd != Absent {
			w.problems = append(w.problems, n.Name+": both daemons run")
		}
		if n.Berthd == Ready && w.kernel[n.Name] != "berth" || n.Former == Ready && w.kernel[n.Name] != "former" {
			w.problems = append(w.problems, fmt.Sprintf("%s: pods are %s's while former=%s berthd=%s", n.Name, w.kernel[n.Name], n.Former, n.Berthd))
		}
		if n.Former != Ready && n.Berthd != Ready {
			away++
		}
		if n.Berthd != Absent && n.FormerControls || n.Former != Absent && n.BerthControls {
			w.problems = append(w.problems, n.Name+": controllers of the other system manage it")
		}
		for _, p := range n.Pods {
			if !w.inPlace && (n.Berthd != Absent && w.owner[p.UID] == "former" || n.Former != Absent && w.owner[p.UID] == "berth") {
				w.problems = append(w.problems, fmt.Sprintf("%s: pod %s has an address of the other system", n.Name, p.Name))
			}
		}
	}
	if away > 2 {
		w.problems = append(w.problems, fmt.Sprintf("%d nodes have no daemon", away))
	}
}

func (w *world) Observe(context.Context) (State, error) {
	w.controllers()
	s := w.State
	s.Nodes = slices.Clone(s.Nodes)
	return s, nil
}

func (w *world) Do(_ context.Context, a Action) error {
	w.changes++
	if w.changes == w.killAt && !w.late {
		return errKilled
	}
	if err := w.do(a); err != nil {
		return err
	}
	w.check()
	if w.changes == w.killAt {
		return errKilled
	}
	return nil
}

func (w *world) do(a Action) error {
	switch a.Kind {
	case Begin:
		w.From = "test"
	case Confine:
		w.Former.Confined, w.Restored = true, false
	case Restore:
		w.Former.Confined, w.Restored = false, true
	case DeleteFormer:
		w.Former.Exists = false
	case End:
		w.From, w.ended = "", true
		for i := range w.Nodes {
			w.Nodes[i].Record = Record{}
		}
	default:
		return w.onNode(w.node(a.Node), a)
	}
	return nil
}

func (w *world) onNode(n *Node, a Action) error {
	switch a.Kind {
	case Write:
		n.Record = a.Record
	case SetLabel:
		n.Label = a.Value
	case Cordon, Uncordon:
		n.Cordoned = a.Kind == Cordon
	case Untaint:
		n.Tainted = false
	case Fence:
		n.FormerControls, n.BerthControls = false, false
	case Evict:
		if w.budget[a.Pod.UID]++; w.budget[a.Pod.UID] < 3 {
			return &BlockedError{"PodDisruptionBudget web"}
		}
		w.evicted = append(w.evicted, a.Pod.UID)
		n.Pods = slices.DeleteFunc(slices.Clone(n.Pods), func(p Pod) bool { return p.UID == a.Pod.UID })
		i := slices.IndexFunc(w.Nodes, func(n Node) bool { return !n.Cordoned && (n.Former == Ready || n.Berthd == Ready) })
		if !a.Pod.Bound && i >= 0 {
			w.create(&w.Nodes[i], false)
		}
	case StartTool:
		w.tool(n, a.Value)
	case DiscardTool:
		n.Tool = nil
	}
	return nil
}

// tool runs the node tool at once; its pod ends later.
func (w *world) tool(n *Node, verb string) {
	n.Tool = &Tool{Verb: verb, Running: true}
	if verb == Survey {
		n.Tool.Plan = &migrate.Plan{Obstacles: w.obstacle}
		return
	}
	r := &migrate.Report{}
	if verb != Verify && verb != string(Finish) && (n.Former != Absent || n.Berthd != Absent) {
		w.problems = append(w.problems, n.Name+": the node tool ran beside a daemon")
	}
	for i, p := range n.Pods {
		fate := migrate.Adopted
		if verb == string(Apply) && i == 1 && w.inPlace {
			fate = migrate.Replace
		}
		r.Pods = append(r.Pods, migrate.Pod{Namespace: p.Namespace, Name: p.Name, Fate: fate})
	}
	if n.Name != "node-0" { // a node lies about a pod of another one
		r.Pods = append(r.Pods, migrate.Pod{Namespace: "default", Name: "pod-1", Fate: migrate.Replace})
	}
	switch verb {
	case string(Apply):
		w.kernel[n.Name] = "berth"
	case string(Rollback):
		w.kernel[n.Name] = "former"
	case Verify:
		r.Problems = w.verify
	}
	n.Tool.Report = r
}

var everyVerb = []string{Survey, string(Apply), string(Rollback), string(Finish), Verify}

func (w *world) options(d Direction) Options {
	o := Options{Direction: d, InPlace: w.inPlace, Verbs: everyVerb, MaxUnavailable: 2}
	return o
}

// run runs until the end, again after each kill.
func (w *world) run(t *testing.T, o Options) error {
	t.Helper()
	for range 5 {
		ctx, cancel := context.WithCancelCause(t.Context())
		err := Run(ctx, killable{w, cancel}, "test", o, clock.Real{}, func(string, string) {})
		cancel(nil)
		if !errors.Is(err, errKilled) {
			return err
		}
	}
	return errors.New("killed too often")
}

// killable ends the run at a kill.
type killable struct {
	*world
	kill context.CancelCauseFunc
}

func (k killable) Do(ctx context.Context, a Action) error {
	err := k.world.Do(ctx, a)
	if errors.Is(err, errKilled) {
		k.kill(errKilled)
	}
	return err
}

// A cluster is moved, or moved back from the middle, with a kill at each change. No node ever has both daemons, and nothing
// is restarted but what must be.
func TestKilledAtEveryChange(t *testing.T) {
	for _, inPlace := range []bool{true, false} {
		for _, back := range []bool{false, true} {
			for _, late := range []bool{false, true} {
				changes := 1
				for kill := 0; kill <= changes; kill++ {
					t.Run(fmt.Sprintf("in place %t, back %t, late %t, kill %d", inPlace, back, late, kill), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							w := newWorld(uint64(kill), inPlace, 4)
							w.killAt, w.late = kill, late
							o := w.options(Apply)
							if back {
								o.Nodes = []string{"node-1", "node-2"}
							}
							if err := w.run(t, o); err != nil {
								t.Fatal(err)
							}
							if back {
								if err := w.run(t, w.options(Rollback)); err != nil {
									t.Fatal(err)
								}
							}
							w.atEnd(t, back)
							if kill == 0 {
								changes = w.changes
							}
						})
					})
				}
			}
		}
	}
}

func (w *world) atEnd(t *testing.T, back bool) {
	t.Helper()
	for _, p := range w.problems {
		t.Error(p)
	}
	want := Ready
	if back {
		want = Absent
	}
	for _, n := range w.Nodes {
		if n.Berthd != want || n.Cordoned || n.Tainted || n.Tool != nil || back && (n.Label != "" || n.Former != Ready || !cmp.Equal(n.Record, Record{})) {
			t.Errorf("at the end: %+v", n)
		}
		if !back && !n.done(Apply) {
			t.Errorf("node %s is not done: %+v", n.Name, n.Record)
		}
	}
	if back && (!w.Restored || w.From != "") {
		t.Errorf("at the end: restored = %t, migration from %q is recorded", w.Restored, w.From)
	}
	if w.inPlace && (slices.Contains(w.evicted, "uid-1") || len(w.evicted) > len(w.Nodes)) {
		t.Errorf("evicted in place: %v, want one pod of each node", w.evicted)
	}
	before := w.changes
	if err := w.run(t, w.options(Apply)); !back && (err != nil || w.changes > before) {
		t.Errorf("a second apply: error = %v, %d changes, want none", err, w.changes-before)
	}
}

// Finish follows apply, and rollback does not follow finish.
func TestFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(7, true, 3)
		if err := w.run(t, w.options(Apply)); err != nil {
			t.Fatal(err)
		}
		w.Nodes[2].Record.Finished = true // as if killed in the middle of finish
		if err := w.run(t, w.options(Rollback)); err == nil || !strings.Contains(err.Error(), "removed the state of test from node node-2") {
			t.Errorf("rollback after finish began: error = %v", err)
		}
		if err := w.run(t, w.options(Finish)); err != nil {
			t.Fatal(err)
		}
		if w.Former.Exists || w.From != "" {
			t.Errorf("after finish: %+v", w.State)
		}
	})
}

// Each state that must not go on is refused, with the reason and the node.
func TestRefusals(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(w *world)
		o      Options
		want   string
	}{
		"other migration":    {func(w *world) { w.From = "coil" }, Options{Direction: Apply}, "a migration from coil is in progress"},
		"no berthd":          {func(w *world) { w.Berthd.Exists = false }, Options{Direction: Apply}, "install Berth with the chart value migration.from=test"},
		"no former system":   {func(w *world) { w.Former.Exists = false }, Options{Direction: Apply}, "there is nothing to migrate from test"},
		"berthd everywhere":  {func(w *world) { w.Berthd.Confined = false }, Options{Direction: Apply}, "would run on nodes that kube-system/aws-node serves"},
		"no migration":       {func(*world) {}, Options{Direction: Finish}, "no migration was begun"},
		"no record":          {func(w *world) { w.Nodes[1].Label, w.Nodes[1].Former = Serving, Absent }, Options{Direction: Rollback}, "node node-1 has the label berth.dev/network, but no migration is recorded"},
		"not moved":          {func(w *world) { w.From = "test" }, Options{Direction: Finish}, "node node-0 is not moved and verified"},
		"unknown node":       {func(*world) {}, Options{Direction: Apply, Nodes: []string{"node-9"}}, `there is no Node "node-9"`},
		"node not ready":     {func(w *world) { w.Nodes[1].Ready = false }, Options{Direction: Apply}, "node node-1: the Node is not Ready"},
		"label of a kubelet": {func(w *world) { w.Nodes[1].Label, w.Nodes[1].Former = Moving, Absent }, Options{Direction: Apply}, "was not set by this migration"},
		"obstacle on a node": {func(w *world) {
			w.obstacle = []migrate.Obstacle{{What: "trunk", Remedy: "drain", Blocks: true}, {What: "hint", Remedy: "none"}}
		}, Options{Direction: Apply}, "node node-0: berthctl migrate plan: trunk: drain"},
		"verification fails": {func(w *world) { w.verify = []string{"10.0.0.1 has two owners"} }, Options{Direction: Apply}, "berthctl migrate verify: 10.0.0.1 has two owners"},
		"unmanaged pod":      {func(w *world) { w.inPlace = false; w.Nodes[0].Pods[0].Unmanaged = true }, Options{Direction: Apply}, "no controller would create it again"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(3, true, 3)
				tt.change(w)
				tt.o.InPlace, tt.o.Verbs, tt.o.MaxUnavailable = w.inPlace, everyVerb, 1
				if err := w.run(t, tt.o); err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("error = %v, want %q", err, tt.want)
				}
				if len(w.problems) > 0 {
					t.Error(w.problems)
				}
			})
		})
	}
}

// A node that registers with the label is verified, not moved. One that failed keeps others from being begun.
func TestLabelledNodesAndFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(5, true, 3)
		n := w.node("node-1")
		n.Label, n.Former, w.Former.Confined = Serving, Absent, true
		w.kernel[n.Name] = "berth"
		if err := w.run(t, w.options(Apply)); err != nil || len(w.problems) > 0 {
			t.Fatal(err, w.problems)
		}
		if r := w.node("node-1").Record; r.Adopted != 0 || !r.Verified {
			t.Errorf("record of a node that had the label = %+v, want it verified only", r)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(5, true, 3)
		w.verify = []string{"no"}
		o := w.options(Apply)
		o.MaxUnavailable = 1
		if err := w.run(t, o); err == nil || strings.Contains(err.Error(), "node-1") || w.node("node-1").Label != "" {
			t.Errorf("error = %v, want node-0 alone to fail and no other to be begun", err)
		}
	})
}
