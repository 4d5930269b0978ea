package eni

import "time"

// probePause is between two probes of a node for pods that come to wait.
const probePause = 10 * time.Second

// podProbe decides when trouble that only a person can resolve, and may have resolved by
// now, is tried before its time because a pod came to wait.
type podProbe struct {
	waiting int       // pods that waited when this was last looked at
	last    time.Time // when the last one was
	at      time.Time // when the next is; zero: none is due
}

// next reports whether to probe now, when so many pods wait: at once when there
// are more than before, but not twice within probePause.
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

// probed are the activities that keep pods waiting.
var probed = [...]activity{activityGrow, activitySubnets, activityLimits, activityObserve, activityInstance}

// probeForPods ends the backoff of activities that wait for a person, such as for a
// missing permission, if a pod came to wait since.
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
