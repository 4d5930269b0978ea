package pace

import "time"

// A process cannot see which of its peers have urgent calls. When it sees refusals, its calls that are not
// urgent wait several times as long as urgent ones, which leaves the tokens to urgent calls of peers.
const (
	spareFactor = 8                // times the wait of an urgent call
	spareLeast  = 2 * time.Second  // assumed of that wait at least,
	spareMost   = 20 * time.Second // and the most that a spare call waits after a refusal
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
