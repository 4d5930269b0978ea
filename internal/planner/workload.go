package planner

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// workload runs the controllers and the scheduler of a small Kubernetes.
type workload struct {
	w           *world
	deployments []*deployment
	pending     []*pod // not scheduled, in the order of creation
	number      uint64 // of the last pod
	running     int    // pods with an address
}

// deployment is the controller of a Deployment.
type deployment struct {
	*Deployment
	want     int
	begun    bool // its first pods were created
	revision int
	pods     []*pod // that exist, in the order of creation
	current  int    // pods of the current revision
	ready    int    // pods that are ready
	delayed  int    // pods that will be created after a crash
	rolling  *rolling
	crashing bool
	failing  int // pods, existing or delayed, that fail
}

// rolling is a rolling update in progress.
type rolling struct{ surge, unavailable int }

func newWorkload(w *world) *workload {
	l := &workload{w: w}
	for i := range w.sc.Workload.Deployments {
		l.deployments = append(l.deployments, &deployment{Deployment: &w.sc.Workload.Deployments[i]})
	}
	return l
}

// begin schedules everything that the scenario says will happen.
func (l *workload) begin() {
	for i := range l.w.sc.Nodes {
		l.beginNodes(&l.w.sc.Nodes[i])
	}
	l.awaitNodes()
	for _, d := range l.deployments {
		for _, c := range d.Changes {
			l.w.later(c.At.Std(), func() {
				l.event(KindScale, d.Name, fmt.Sprintf("Deployment %s goes from %d to %d replicas", d.Name, d.want, c.Count))
				l.want(d, c.Count)
			})
		}
		for _, r := range d.Rollouts {
			l.w.later(r.At.Std(), func() { l.rollOut(d, r) })
		}
		if c := d.CrashLoop; c != nil {
			l.w.later(c.From.Std(), func() { l.startCrashing(d) })
			if c.Until > 0 {
				l.w.later(c.Until.Std(), func() { l.endCrashing(d) })
			}
		}
	}
}

// awaitNodes creates the first pods once all first nodes are ready, or after two minutes.
func (l *workload) awaitNodes() {
	first := 0
	for _, g := range l.w.sc.Nodes {
		first += g.Count
	}
	l.w.later(time.Second, func() {
		ready := 0
		for _, n := range l.w.nodes {
			if n.ready {
				ready++
			}
		}
		if ready < first && l.w.rec.since() < Duration(2*time.Minute) {
			l.awaitNodes()
			return
		}
		for _, d := range l.deployments {
			if !d.begun {
				l.want(d, d.Replicas)
			}
		}
	})
}

// want sets the number of replicas.
func (l *workload) want(d *deployment, n int) {
	d.want, d.begun = n, true
	l.sync(d)
}

func (l *workload) event(kind, on, text string) {
	l.w.rec.event(Event{Kind: kind, On: on, Text: text})
}

func (l *workload) beginNodes(g *NodeGroup) {
	l.w.scales[g.Name] = &scale{}
	l.scale(g, g.Count)
	for _, c := range g.Changes {
		l.w.later(c.At.Std(), func() {
			l.event(KindNodes, g.Name, fmt.Sprintf("Node group %s goes from %d to %d nodes", g.Name, len(l.w.nodesOf(g)), c.Count))
			l.scale(g, c.Count)
		})
	}
	if r := g.Replace; r != nil {
		var replace func()
		replace = func() {
			l.replace(g, max(1, r.Nodes))
			l.w.later(r.Every.Std(), replace)
		}
		l.w.later(r.Every.Std(), replace)
	}
}

// scale starts nodes, or removes the newest ones. Nodes do not start at the same moment. Those that are being replaced do
// not count.
func (l *workload) scale(g *NodeGroup, count int) {
	have := l.w.staying(g)
	for i := len(have); i > count; i-- {
		l.w.stopNode(have[i-1])
	}
	s := l.w.scales[g.Name]
	s.wanted = count
	for i := len(have) + s.starting; i < count; i++ {
		s.starting++
		l.w.later(time.Duration(l.w.rng.Int64N(int64(5*time.Second))), func() {
			s.starting--
			if len(l.w.staying(g)) < s.wanted {
				l.w.startNode(g)
			}
		})
	}
}

// replace starts new nodes, and removes the oldest ones once a minute has passed.
func (l *workload) replace(g *NodeGroup, count int) {
	old := l.w.staying(g)
	old = old[:min(count, len(old))]
	if s := l.w.scales[g.Name]; !s.replaced && len(old) > 0 {
		s.replaced = true
		l.event(KindNodes, g.Name, fmt.Sprintf("Node group %s: %d of %d nodes are replaced, and again every %v", g.Name, len(old), len(l.w.nodesOf(g)), g.Replace.Every.Std()))
	}
	for _, n := range old {
		if l.w.startNode(g) {
			n.leaving = true
			l.w.later(time.Minute, func() {
				if slices.Contains(l.w.nodes, n) {
					l.w.stopNode(n)
				}
			})
		}
	}
}

// nodeReady starts the node's daemon pods, and those that wait for a node.
func (l *workload) nodeReady(n *node) {
	for range l.w.sc.Workload.DaemonPods {
		p := l.newPod(nil)
		l.bind(p, n)
	}
	l.schedule()
}

// nodeGone ends a node's pods. Their controllers create others.
func (l *workload) nodeGone(n *node) {
	for _, p := range n.daemons {
		l.remove(p)
	}
	for _, d := range l.deployments {
		lost := false
		for _, p := range slices.Clone(d.pods) {
			if p.node == n {
				l.remove(p)
				lost = true
			}
		}
		if lost {
			l.sync(d)
		}
	}
}

func (l *workload) newPod(d *deployment) *pod {
	l.number++
	p := &pod{number: l.number, of: d}
	l.w.rec.pods++
	if d != nil {
		p.revision = d.revision
		d.pods = append(d.pods, p)
		d.current++
	}
	return p
}

// sync creates and removes pods of a deployment until it has as many as it wants, as far as a rolling update in
// progress lets it.
func (l *workload) sync(d *deployment) {
	for l.step(d) {
	}
	if d.rolling != nil && d.delayed == 0 && len(d.pods) == d.want && d.current == d.want && d.ready == d.want {
		d.rolling = nil
		l.event(KindRolloutDone, d.Name, "The rollout of deployment "+d.Name+" is complete")
	}
	l.schedule()
}

// step makes one change, and reports whether it did.
func (l *workload) step(d *deployment) bool {
	total, current := len(d.pods)+d.delayed, d.current+d.delayed
	surge := 0
	if d.rolling != nil {
		surge = d.rolling.surge
	}
	switch {
	case current < d.want && total < d.want+surge:
		l.pending = append(l.pending, l.newPod(d))
		return true
	case d.rolling == nil && total > d.want && len(d.pods) > 0:
		l.remove(d.leastNeeded())
		return true
	case d.rolling != nil:
		for _, p := range d.pods {
			old := p.revision != d.revision
			if (old || current > d.want) && (!p.ready || d.ready-1 >= d.want-d.rolling.unavailable) {
				l.remove(p)
				return true
			}
		}
	}
	return false
}

// leastNeeded returns the pod to remove first: one without a node, or without an address, or not ready, or else the newest.
func (d *deployment) leastNeeded() (out *pod) {
	rank := func(p *pod) int {
		switch {
		case p.node == nil:
			return 0
		case !p.has:
			return 1
		case !p.ready:
			return 2
		}
		return 3
	}
	for _, p := range d.pods {
		if out == nil || rank(p) <= rank(out) {
			out = p
		}
	}
	return out
}

// rollOut begins a rolling update.
func (l *workload) rollOut(d *deployment, r Rollout) {
	surge, unavailable := share(r.MaxSurge, d.want, math.Ceil), share(r.MaxUnavailable, d.want, math.Floor)
	if surge+unavailable == 0 {
		unavailable = 1
	}
	d.revision++
	d.current = 0
	d.rolling = &rolling{surge, unavailable}
	l.event(KindRollout, d.Name, fmt.Sprintf("Deployment %s replaces its %d pods, with up to %d more and %d fewer at a time", d.Name, d.want, surge, unavailable))
	l.sync(d)
}

// share is a number, or a percentage of n, as Kubernetes has them; 25% if empty.
func share(text string, n int, round func(float64) float64) int {
	text = cmp.Or(text, "25%")
	if percent, ok := strings.CutSuffix(text, "%"); ok {
		v, _ := strconv.Atoi(percent)
		return int(round(float64(v*n) / 100))
	}
	v, _ := strconv.Atoi(text)
	return v
}

// schedule binds pending pods to nodes: each to the one with the fewest pods of its deployment, then the fewest of all.
func (l *workload) schedule() {
	full := map[bool]bool{} // by whether the pod wants a branch
	var left []*pod
	for _, p := range l.pending {
		if p.gone {
			continue
		}
		wantsBranch := p.of != nil && p.of.Branch
		var best *node
		if !full[wantsBranch] {
			for _, n := range l.w.nodes {
				fits := n.ready && n.pods < n.maxPods && (!wantsBranch || n.branches < n.branchesOf())
				if fits && (best == nil || cmp.Or(cmp.Compare(n.of[p.of], best.of[p.of]), cmp.Compare(n.pods, best.pods)) < 0) {
					best = n
				}
			}
		}
		if best == nil {
			full[wantsBranch] = true
			left = append(left, p)
			continue
		}
		l.bind(p, best)
	}
	l.pending = left
}
