package nodeenis

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

// wake is the first moment after since at which there may be something to do;
// zero: only when something changes. n.mu is held.
func (n *node) wake(since time.Time) time.Time {
	var moments []time.Time
	for _, t := range n.timers() {
		moments = append(moments, t.due(since))
	}
	return retry.Earliest(since, moments...)
}

// schedule has the node reconciled when the first of its timers is due. The queue
// keeps the earliest time for each node, so every reconciliation asks for the next.
// since is when the reconciliation began: what became due meanwhile may have been
// judged before, and is seen to at once.
func (n *node) schedule(since time.Time) {
	n.mu.Lock()
	at := n.wake(since)
	n.mu.Unlock()
	if !at.IsZero() {
		n.c.queue.AddAfter(n.name, max(0, at.Sub(n.c.now())))
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
