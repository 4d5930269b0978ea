package eni

import "time"

// timed is a part of the reconciler that has something to do at a time of its
// own, without an event.
type timed interface {
	// due is the first moment after now at which there may be something to do;
	// zero: there is none.
	due(now time.Time) time.Time
}

// timers are all parts that have times of their own
// (TestEveryTimedPartIsAmongTheTimers).
func (r *Reconciler) timers() []timed {
	return []timed{
		&r.confidence, &r.lookups, &r.instance, &r.retries,
		&r.placement, &r.attachments, &r.trunk, &r.surplus, &r.links, &r.orphans,
	}
}

// idle is how long a reconciler rests that someone else wakes.
const idle = 24 * time.Hour

// wake tells how long nothing needs to be done.
func (r *Reconciler) wake(now time.Time) time.Duration {
	if r.instance.vanished {
		return idle
	}
	if r.repairDue(now) && !r.retries.closed(gateObserve, now) {
		return 0
	}
	at := now.Add(idle)
	for _, t := range r.timers() {
		if due := t.due(now); !due.IsZero() && due.Before(at) {
			at = due
		}
	}
	return max(0, at.Sub(now))
}
