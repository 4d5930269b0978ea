package planner

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/vpcport"
)

const (
	readyAfter   = 5 * time.Second
	failsAfter   = time.Second
	crashBackoff = 10 * time.Second
	crashMost    = 5 * time.Minute
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
	delayed  int    // pods that will be created after a crash
	rolling  *rolling
	crashing bool
	failing  int // pods, existing or delayed, that fail
}

// rolling is a rolling update in progress.
type rolling struct{ surge, unavailable int }

// pod is a pod until it ends.
type pod struct {
	number   uint64
	of       *deployment // nil for a daemon pod
	revision int
	node     *node // nil while pending
	asked    time.Time
	cancel   context.CancelFunc
	port     string // ID of its branch interface
	has      bool   // it has its address
	ready    bool
	gone     bool
	crashes  int
	fails    bool
}

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
	l.scale(g, g.Count)
	for _, c := range g.Changes {
		l.w.later(c.At.Std(), func() {
			l.event(KindNodes, g.Name, fmt.Sprintf("Node group %s goes from %d to %d nodes", g.Name, len(l.nodesOf(g)), c.Count))
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

func (l *workload) nodesOf(g *NodeGroup) (out []*node) {
	for _, n := range l.w.nodes {
		if n.group == g {
			out = append(out, n)
		}
	}
	return out
}

// scale starts nodes, or removes the newest ones. Nodes do not start at the same moment.
func (l *workload) scale(g *NodeGroup, count int) {
	have := l.nodesOf(g)
	for i := len(have); i > count; i-- {
		l.w.stopNode(have[i-1])
	}
	for i := len(have); i < count; i++ {
		l.w.later(time.Duration(l.w.rng.Int64N(int64(5*time.Second))), func() { l.w.startNode(g) })
	}
}

// replace starts new nodes, and removes the oldest ones once a minute has passed.
func (l *workload) replace(g *NodeGroup, count int) {
	old := l.nodesOf(g)
	old = old[:min(count, len(old))]
	if l.w.replaced[g.Name] == 0 {
		l.event(KindNodes, g.Name, fmt.Sprintf("Node group %s: %d of %d nodes are replaced, and again every %v", g.Name, len(old), len(l.nodesOf(g)), g.Replace.Every.Std()))
	}
	l.w.replaced[g.Name] += len(old)
	for _, n := range old {
		if l.w.startNode(g) {
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
	}
	return p
}

// sync creates and removes pods of a deployment until it has as many as it wants, as far as a rolling update in
// progress lets it.
func (l *workload) sync(d *deployment) {
	for l.step(d) {
	}
	if d.rolling != nil && d.delayed == 0 && len(d.pods) == d.want && !slices.ContainsFunc(d.pods, func(p *pod) bool { return p.revision != d.revision || !p.ready }) {
		d.rolling = nil
		l.event(KindRolloutDone, d.Name, "The rollout of deployment "+d.Name+" is complete")
	}
	l.schedule()
}

// step makes one change, and reports whether it did.
func (l *workload) step(d *deployment) bool {
	total, current, available := len(d.pods)+d.delayed, d.delayed, 0
	for _, p := range d.pods {
		if p.revision == d.revision {
			current++
		}
		if p.ready {
			available++
		}
	}
	surge := 0
	if d.rolling != nil {
		surge = d.rolling.surge
	}
	switch {
	case current < d.want && total < d.want+surge:
		l.pend(l.newPod(d))
		return true
	case d.rolling == nil && total > d.want && len(d.pods) > 0:
		l.remove(d.leastNeeded())
		return true
	case d.rolling != nil:
		for _, p := range d.pods {
			old := p.revision != d.revision
			if (old || total > d.want+surge) && (!p.ready || available-1 >= d.want-d.rolling.unavailable) && total > 0 && (old || current > d.want) {
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

// pend makes a pod wait for a node.
func (l *workload) pend(p *pod) { l.pending = append(l.pending, p) }

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

// bind starts a pod on a node: it asks for its address.
func (l *workload) bind(p *pod, n *node) {
	p.node, p.asked = n, l.w.Now()
	n.pods++
	n.of[p.of]++
	if p.of == nil {
		n.daemons = append(n.daemons, p)
	}
	n.waiting[p] = true
	var ctx context.Context
	ctx, p.cancel = context.WithCancel(l.w.ctx)
	if p.of != nil && p.of.Branch {
		n.branches++
		l.w.tasks.Go(func() { l.plugBranch(ctx, p) })
		return
	}
	l.w.tasks.Go(func() {
		l.w.Turn("pod", p.number)
		_, err := n.src.Acquire(ctx, attachment.Request{Key: p.key(), Pod: attachment.Pod{Namespace: "default", Name: p.key().ContainerID}})
		l.w.Turn("pod", p.number)
		switch {
		case err == nil && p.gone:
			n.src.Cancel(p.key())
		case err == nil:
			l.granted(p)
		}
	})
}

func (p *pod) key() attachment.Key {
	return attachment.Key{Network: "pods", ContainerID: strconv.FormatUint(p.number, 10), IfName: "eth0"}
}

// plugBranch creates the pod's branch interface, with the delays between attempts that the operator has.
func (l *workload) plugBranch(ctx context.Context, p *pod) {
	l.w.Turn("branch", p.number)
	for failures := 0; ctx.Err() == nil; failures++ {
		ports, err := l.w.operator.branches.Create(ctx, []vpcport.NewPort{{NetworkID: cloudfake.VPC, Name: p.key().String(), Device: p.key().String(), Host: p.node.instance}})
		l.w.Turn("branch", p.number)
		if err == nil {
			p.port = ports[0].ID
			if p.gone {
				l.unplugBranch(p)
				return
			}
			l.granted(p)
			return
		}
		select {
		case <-ctx.Done():
		case <-l.w.After(retry.Delay(time.Second, time.Minute, failures)):
		}
	}
}

// unplugBranch deletes the pod's branch interface.
func (l *workload) unplugBranch(p *pod) {
	n := p.node
	l.w.tasks.Go(func() {
		l.w.Turn("branch", p.number)
		for failures := 0; l.w.ctx.Err() == nil; failures++ {
			err := l.w.operator.branches.Delete(l.w.ctx, p.port)
			l.w.Turn("branch", p.number)
			if err == nil {
				n.branches--
				l.schedule()
				return
			}
			select {
			case <-l.w.ctx.Done():
			case <-l.w.After(retry.Delay(time.Second, time.Minute, failures)):
			}
		}
	})
}

// granted continues a pod that got its address.
func (l *workload) granted(p *pod) {
	l.endWait(p)
	p.has = true
	l.running++
	d := p.of
	if d == nil {
		return
	}
	if d.crashing {
		l.maybeFail(p)
	}
	if p.fails {
		l.w.later(d.CrashLoop.After.Or(failsAfter), func() { l.fail(p) })
		return
	}
	l.w.later(d.Ready.Or(readyAfter), func() {
		if !p.gone {
			p.ready = true
			if d.rolling != nil {
				l.sync(d)
			}
		}
	})
	if life := d.Lifetime.Std(); life > 0 {
		l.w.later(life*9/10+time.Duration(l.w.rng.Int64N(int64(life/5)+1)), func() {
			if !p.gone {
				l.remove(p)
				l.sync(d)
			}
		})
	}
}

// endWait records how long a pod waited.
func (l *workload) endWait(p *pod) {
	delete(p.node.waiting, p)
	l.w.rec.waited(l.w.Now().Sub(p.asked))
}

// remove ends a pod.
func (l *workload) remove(p *pod) {
	if d := p.of; d != nil {
		d.pods = slices.DeleteFunc(d.pods, func(o *pod) bool { return o == p })
		if p.fails {
			d.failing--
		}
	}
	p.gone, p.ready = true, false
	n := p.node
	if n == nil {
		return // still pending
	}
	p.cancel()
	n.pods--
	n.of[p.of]--
	branch := p.of != nil && p.of.Branch
	switch {
	case !p.has:
		l.endWait(p)
		if branch {
			n.branches--
		}
		return
	case branch:
		l.unplugBranch(p)
	default:
		n.src.Release(p.key())
	}
	p.has = false
	l.running--
}

func (l *workload) startCrashing(d *deployment) {
	d.crashing = true
	l.event(KindCrashLoop, d.Name, fmt.Sprintf("Pods of deployment %s begin to fail and to be replaced", d.Name))
	for _, p := range slices.Clone(d.pods) {
		if p.has {
			l.maybeFail(p)
			if p.fails {
				l.w.later(d.CrashLoop.After.Or(failsAfter), func() { l.fail(p) })
			}
		}
	}
}

func (l *workload) endCrashing(d *deployment) {
	d.crashing = false
	for _, p := range d.pods {
		p.fails = false
	}
	d.failing = 0
}

// maybeFail decides whether a pod is one of those that fail.
func (l *workload) maybeFail(p *pod) {
	if d := p.of; !p.fails && (d.CrashLoop.Pods == 0 || d.failing < d.CrashLoop.Pods) {
		p.fails = true
		d.failing++
	}
}

// fail ends a pod that failed. Its controller creates another after a delay.
func (l *workload) fail(p *pod) {
	d := p.of
	if p.gone || !p.fails {
		return
	}
	l.remove(p)
	d.delayed++
	l.w.later(retry.Delay(crashBackoff, crashMost, p.crashes), func() {
		d.delayed--
		if len(d.pods)+d.delayed < d.want {
			next := l.newPod(d)
			next.crashes = p.crashes + 1
			l.pend(next)
		}
		l.sync(d)
	})
}

// pendingPods returns the number of pods that wait for a node.
func (l *workload) pendingPods() (n int) {
	for _, p := range l.pending {
		if !p.gone {
			n++
		}
	}
	return n
}
