package pace

import "time"

// Among peers a process cannot see who else waits for the account's rate. It
// does see refusals: then a call that nobody waits for is left for some times
// as long as one that is urgent, which leaves what flows into the bucket to the
// calls of processes that need it.
const (
	spareFactor = 8                // times the wait of an urgent call
	spareLeast  = 2 * time.Second  // assumed of that wait at least,
	spareMost   = 20 * time.Second // and the most that a spare call waits after a refusal
)

// yield notes a refusal by a pacer.
func (s *Set) yield(p *pacer, now time.Time) {
	if !s.options.Peers {
		return
	}
	wait := max(spareLeast, p.held.Sub(now)+time.Duration(float64(time.Second)/p.rate))
	if at := now.Add(min(spareMost, spareFactor*wait)); at.After(s.spareAt) {
		s.spareAt = at
	}
}

// need has a waiter go at once that was spare.
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
