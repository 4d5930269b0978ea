package lanes

import "slices"

// urgency orders waiting calls; the lowest is the most urgent.
type urgency int

const (
	first  urgency = iota // frees something or lets a pod start: deletions and bindings
	second                // reads
	third                 // creates ports
	urgencies
)

// fairness is how many calls in a row may overtake the oldest one.
const fairness = 8

// waiter is a waiting call.
type waiter struct {
	urgency urgency
	number  uint64        // in the order of arrival
	turn    chan struct{} // closed when the call may start
}

// queue holds the waiting calls. The zero value is empty.
type queue struct {
	by       [urgencies][]*waiter // in the order of arrival
	numbers  uint64
	overtook int // calls in a row that overtook the oldest one
}

func (q *queue) len() (n int) {
	for _, ws := range q.by {
		n += len(ws)
	}
	return n
}

func (q *queue) add(w *waiter) {
	q.numbers++
	w.number = q.numbers
	q.by[w.urgency] = append(q.by[w.urgency], w)
}

// remove removes a call; false if it is not in the queue.
func (q *queue) remove(w *waiter) bool {
	i := slices.Index(q.by[w.urgency], w)
	if i >= 0 {
		q.by[w.urgency] = slices.Delete(q.by[w.urgency], i, i+1)
	}
	return i >= 0
}

// take removes the next call from a queue that is not empty: the first of the most urgent ones, but after
// fairness calls that overtook it, the oldest one.
func (q *queue) take() *waiter {
	var urgent, oldest *waiter
	for _, ws := range q.by {
		if len(ws) == 0 {
			continue
		}
		if urgent == nil {
			urgent = ws[0]
		}
		if oldest == nil || ws[0].number < oldest.number {
			oldest = ws[0]
		}
	}
	next := urgent
	if urgent == oldest || q.overtook >= fairness {
		next, q.overtook = oldest, 0
	} else {
		q.overtook++
	}
	q.remove(next)
	return next
}
