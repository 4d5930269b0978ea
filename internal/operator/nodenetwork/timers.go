package nodenetwork

import (
	"maps"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/retry"
)

// timed is a part of a node that has something to do at a time of its own,
// without an event.
type timed interface {
	// due is the first moment after now at which there may be something to do;
	// zero: there is none.
	due(now time.Time) time.Time
}

// timers are all parts of a node that have times of their own, in the order in
// which Reconcile sees to them (TestEveryTimedPartIsAmongTheTimers). Candidates
// that the fleet does not ask for any more and demand need none: they are looked
// at after each pass of the fleet, which comes by itself.
func (n *node) timers() []timed {
	return []timed{
		&n.eligibility, // EC2 is asked once more for the proof, or a recreated object is worked for
		&n.ownership,   // what another operator took away may be published again
		&n.liveness,    // the object of a node that is gone is deleted
		&n.writes,      // the API server is asked again, or news of the status is written
	}
}

// wake is how long nothing needs to be done; zero: until something changes. n.mu
// is held.
func (n *node) wake(now time.Time) time.Duration {
	var moments []time.Time
	for _, t := range n.timers() {
		moments = append(moments, t.due(now))
	}
	first := retry.Earliest(now, moments...)
	if first.IsZero() {
		return 0
	}
	return first.Sub(now)
}

// schedule has the node reconciled when the first of its timers is due. The queue
// keeps the earliest time for each node, so every reconciliation asks for the next.
func (n *node) schedule() {
	n.mu.Lock()
	wait := n.wake(n.c.now())
	n.mu.Unlock()
	if wait > 0 {
		n.c.queue.AddAfter(n.name, wait)
	}
}

func (e *eligibility) due(now time.Time) time.Time {
	return retry.Earliest(now, e.askAt, e.heldUntil)
}

func (w *ownership) due(now time.Time) time.Time {
	return retry.Earliest(now, slices.Collect(maps.Values(w.suppressed))...)
}

func (l *liveness) due(now time.Time) time.Time { return retry.Earliest(now, l.deleteAt) }

func (w *writes) due(now time.Time) time.Time { return retry.Earliest(now, w.retry.Until, w.newsAt) }
