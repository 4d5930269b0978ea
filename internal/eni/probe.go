package eni

import (
	"time"

	"github.com/berthnet/berth/internal/cloud"
)

// probePause is between two probes of a node for pods that come to wait.
const probePause = 10 * time.Second

// probe is when what only a person can mend, and may have mended by now, is
// tried before its time because a pod came to wait.
type probe struct {
	waiting int       // pods that waited when this was last looked at
	last    time.Time // when the last one was
	at      time.Time // when the next is; zero: none is due
}

// next tells whether to probe now, when so many pods wait: at once when there
// are more than before, and not twice within the pause.
func (p *probe) next(waiting int, now time.Time) bool {
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

// probed are the gates that keep pods waiting.
var probed = [...]gate{gateGrow, gateSubnets, gateLimits, gateObserve, gateInstance}

// heedWaiters opens the gates that are closed for long until somebody mends
// what is wrong, such as a permission that lacks, if a pod came to wait since.
func (r *Reconciler) heedWaiters(now time.Time) {
	var shut []*backoff
	for _, g := range probed {
		if b := r.gates[g]; b != nil && b.until.After(now) && (b.class == cloud.Permission || b.class == cloud.Bug) {
			shut = append(shut, b)
		}
	}
	if len(shut) == 0 {
		r.probe.at = time.Time{}
		return
	}
	if !r.probe.next(r.cfg.Node.Usage().Waiting, now) {
		return
	}
	for _, b := range shut {
		b.until = now
	}
}
