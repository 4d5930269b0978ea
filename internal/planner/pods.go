package planner

import (
	"context"
	"fmt"
	"slices"
	"strconv"
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

// bind starts a pod on a node by requesting its address.
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

// plugBranch creates the pod's branch interface, with the operator's delays between attempts.
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
	l.w.Turn("branch", p.number) // the end of ctx woke others too
	p.node.branches--
	if l.w.ctx.Err() == nil {
		l.schedule()
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
		p.maybeFail()
	}
	if p.fails {
		l.w.later(d.CrashLoop.After.Or(failsAfter), func() { l.fail(p) })
	}
	l.w.later(d.Ready.Or(readyAfter), func() {
		if !p.gone {
			p.ready = true
			d.ready++
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
		if i := slices.Index(d.pods, p); i >= 0 {
			d.pods = slices.Delete(d.pods, i, i+1)
		}
		if p.revision == d.revision {
			d.current--
		}
		if p.ready {
			d.ready--
		}
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
	switch {
	case !p.has:
		l.endWait(p)
		return // plugBranch frees the place of a branch interface
	case p.of != nil && p.of.Branch:
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
			p.maybeFail()
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

// maybeFail decides whether a pod will fail.
func (p *pod) maybeFail() {
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
			l.pending = append(l.pending, next)
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
