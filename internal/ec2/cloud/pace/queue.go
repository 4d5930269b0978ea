package pace

import (
	"container/heap"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
)

// waiter is a call in a queue.
type waiter struct {
	action   *action
	priority cloud.Priority
	spare    bool   // not urgent: it yields to peers
	ticket   uint64 // order of arrival of the first attempt
	since    time.Time
	ready    chan struct{} // closed when permit is set; nil if that was when the call joined the queue
	permit   permit
	at       [2]int // indexes in the two heaps of a queue
}

// queue holds the waiters of an action in two orders at once.
type queue struct{ byPriority, byAge order }

func (q *queue) init() {
	q.byPriority = order{which: 0, before: func(a, b *waiter) bool {
		if a.spare != b.spare {
			return b.spare
		}
		if a.priority != b.priority {
			return a.priority > b.priority
		}
		return a.ticket < b.ticket
	}}
	q.byAge = order{which: 1, before: func(a, b *waiter) bool { return a.ticket < b.ticket }}
}

func (q *queue) len() int { return len(q.byAge.list) }

func (q *queue) push(w *waiter) {
	heap.Push(&q.byPriority, w)
	heap.Push(&q.byAge, w)
}

func (q *queue) remove(w *waiter) {
	heap.Remove(&q.byPriority, w.at[0])
	heap.Remove(&q.byAge, w.at[1])
}

// first is the waiter with the highest priority; oldest is the one that arrived first. The queue must not be
// empty.
func (q *queue) first() *waiter  { return q.byPriority.list[0] }
func (q *queue) oldest() *waiter { return q.byAge.list[0] }

// order is a heap of waiters that tracks each waiter's index.
type order struct {
	list   []*waiter
	which  int // index into waiter.at
	before func(a, b *waiter) bool
}

func (o *order) Len() int           { return len(o.list) }
func (o *order) Less(i, j int) bool { return o.before(o.list[i], o.list[j]) }

func (o *order) Swap(i, j int) {
	l := o.list
	l[i], l[j] = l[j], l[i]
	l[i].at[o.which], l[j].at[o.which] = i, j
}

func (o *order) Push(x any) {
	w := x.(*waiter)
	w.at[o.which] = len(o.list)
	o.list = append(o.list, w)
}

func (o *order) Pop() any {
	n := len(o.list) - 1
	w := o.list[n]
	o.list[n] = nil
	o.list = o.list[:n]
	return w
}

// A process cannot see which of its peers have urgent calls. When it sees refusals, its spare calls wait several
// times as long as urgent ones, which leaves the tokens to urgent calls of peers.
const (
	spareFactor = 8                // multiple of the wait of an urgent call
	spareLeast  = 2 * time.Second  // assumed minimum of that wait
	spareMost   = 20 * time.Second // maximum wait of a spare call after a refusal
)

// yield records a refusal.
func (s *Set) yield(p *pacer, now time.Time) {
	if !s.options.Peers {
		return
	}
	wait := max(spareLeast, p.held.Sub(now)+time.Duration(float64(time.Second)/p.rate))
	if at := now.Add(min(spareMost, spareFactor*wait)); at.After(s.spareAt) {
		s.spareAt = at
	}
}

// need makes a spare waiter urgent.
func (s *Set) need(w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.permit.action != nil {
		return
	}
	w.action.queue.remove(w)
	w.spare = false
	w.action.queue.push(w)
	s.dispatch()
}
