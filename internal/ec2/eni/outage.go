package eni

import (
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
)

// While pods wait, calls that failed because of an outage (timeouts, 5xx) are retried before the backoff of their
// activity ends.
const (
	probeAway = 3 * time.Second         // from a failure to the probe of a node, on average
	probeGap  = 1500 * time.Millisecond // minimum time between two probes of a process
	probeTime = 5 * time.Second         // after which a probe without a reply no longer delays the next
)

// outage lets the nodes of a process detect together whether a failed cloud responds again: one node at a time
// probes, and when it gets a reply, all nodes proceed whose calls failed in the same way before. All reconcilers of
// a process share one.
type outage struct {
	over func()

	mu     sync.Mutex             // guards all below; never held during a call
	prober *retries               // the node whose turn it is, or nil
	last   time.Time              // start or end of the last turn
	ended  map[activity]time.Time // when a probe last got a reply
}

// newOutage returns a state without an outage. Over is as in NewShared.
func newOutage(over func()) *outage {
	if over == nil {
		over = func() {}
	}
	return &outage{over: over, ended: map[activity]time.Time{}}
}

// take gives a node the turn to probe, if no node has it and the last turn is long enough ago.
func (o *outage) take(t *retries, now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	wait := probeGap
	if o.prober != nil {
		wait = probeTime
	}
	if !o.last.IsZero() && now.Before(o.last.Add(wait)) {
		return false
	}
	o.prober, o.last = t, now
	return true
}

// leave ends the turn of a node that has it.
func (o *outage) leave(t *retries, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.prober == t {
		o.prober, o.last = nil, now
	}
}

// answered records that a call of an activity got a reply, if the node has the turn.
func (o *outage) answered(t *retries, g activity, now time.Time) {
	o.mu.Lock()
	mine := o.prober == t
	if mine {
		o.ended[g] = now
	}
	o.mu.Unlock()
	if mine {
		o.over()
	}
}

// endedAfter reports whether a probe of an activity got a reply since a failure.
func (o *outage) endedAfter(g activity, failed time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ended[g].After(failed)
}

// away reports whether an error may mean that the cloud is unreachable.
func away(class cloud.Class) bool { return class == cloud.Transient || class == cloud.Unknown }

// probeOutage ends the backoff of activities that get replies again according to a probe and, if it is this node's
// turn to probe, of all activities.
func (t *retries) probeOutage(now time.Time) {
	var shut []*backoff
	for _, g := range probed {
		b := t.failed[g]
		switch {
		case b == nil || !b.until.After(now) || !away(b.class):
		case t.cfg.Shared.outage.endedAfter(g, b.at):
			b.until = now
		default:
			shut = append(shut, b)
		}
	}
	due := func(b *backoff) bool { return !b.probe.After(now) }
	if !slices.ContainsFunc(shut, due) || t.cfg.Node.Usage().Waiting == 0 {
		return
	}
	mine := t.cfg.Shared.outage.take(t, now)
	for _, b := range shut {
		if mine {
			b.until = now
		} else if due(b) {
			b.probe = now.Add(t.cfg.jitter(probeAway))
		}
	}
}

// probePause is the minimum time between two probes of a node for new waiting pods.
const probePause = 10 * time.Second

// podProbe decides when to retry an error that needs human intervention, and may have been resolved, ahead of its
// backoff because a new pod waits.
type podProbe struct {
	waiting int       // waiting pods at the last check
	last    time.Time // time of the last probe
	at      time.Time // time of the next probe; zero for none
}

// next reports whether to probe now, with the given number of waiting pods: immediately if there are more than
// before, but not twice within probePause.
func (p *podProbe) next(waiting int, now time.Time) bool {
	if waiting > p.waiting && p.at.IsZero() {
		p.at = now
		if again := p.last.Add(probePause); !p.last.IsZero() && again.After(now) {
			p.at = again
		}
	}
	p.waiting = waiting
	if waiting == 0 {
		p.at = time.Time{}
	}
	if p.at.IsZero() || p.at.After(now) {
		return false
	}
	p.last, p.at = now, time.Time{}
	return true
}

// probed lists the activities that keep pods waiting.
var probed = [...]activity{activityGrow, activitySubnets, activityLimits, activityObserve, activityInstance}

// probeForPods ends the backoff of activities that need human intervention, such as a missing permission, if a pod
// has started to wait since.
func (t *retries) probeForPods(now time.Time) {
	var shut []*backoff
	for _, g := range probed {
		if b := t.failed[g]; b != nil && b.until.After(now) && b.permanent() {
			shut = append(shut, b)
		}
	}
	if len(shut) == 0 {
		t.podProbe.at = time.Time{}
		return
	}
	if !t.podProbe.next(t.cfg.Node.Usage().Waiting, now) {
		return
	}
	for _, b := range shut {
		b.until = now
	}
}
