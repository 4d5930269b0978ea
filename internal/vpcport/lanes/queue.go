package lanes

import "slices"

// urgency sorts calls that wait; the lowest is the most urgent.
type urgency int

const (
	first  urgency = iota // gives back, or lets a pod start: deletions and bindings
	second                // tells what there is
	third                 // asks for more: new ports
	urgencies
)

// fairness is how many calls in a row may overtake one that waits longer.
const fairness = 8

// waiter is a call that waits.
type waiter struct {
	urgency urgency
	number  uint64        // by which the older of two is known
	turn    chan struct{} // closed once it may begin
}

// queue is the calls that wait. The zero value is empty.
type queue struct {
	by       [urgencies][]*waiter // in the order in which they came
	numbers  uint64
	overtook int // calls in a row that did not wait the longest
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

// remove takes a call out; false: it was not there any more.
func (q *queue) remove(w *waiter) bool {
	i := slices.Index(q.by[w.urgency], w)
	if i >= 0 {
		q.by[w.urgency] = slices.Delete(q.by[w.urgency], i, i+1)
	}
	return i >= 0
}

// take takes the next one out of a queue that is not empty: the first of the most urgent;
// but after fairness others that overtook it, the one that has waited the longest.
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
