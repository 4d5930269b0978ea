package cloudfake

import "time"

// past keeps old states for listings that lag.
type past struct {
	lag    time.Duration
	states []state // by time; the first is shown if none is old enough
}

// state is a version of all ENIs.
type state struct {
	at   time.Time
	enis []*eni // copies, in the order of creation
}

// SetLag makes listings lag by d.
func (st *State) SetLag(d time.Duration) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.enis.past.lag = d
	if d == 0 {
		st.enis.past.states = nil
	} else if len(st.enis.past.states) == 0 {
		st.enis.remember()
	}
}

// remember records a version for lagging listings. State.mu is held.
func (es *enis) remember() {
	if es.past.lag == 0 {
		return
	}
	es.settle()
	now := es.clock.Now()
	s := state{at: now}
	for _, e := range es.order {
		if !e.deleted {
			s.enis = append(s.enis, &eni{ENI: clone(e), seq: e.seq})
		}
	}
	p := &es.past
	p.states = append(p.states, s)
	for len(p.states) > 1 && !p.states[1].at.After(now.Add(-p.lag)) {
		p.states = p.states[1:]
	}
}

// shown returns the ENIs that listings show; false if they are the current ones.
func (p *past) shown(now time.Time) (enis []*eni, ok bool) {
	n := 0
	for i, s := range p.states {
		if !s.at.After(now.Add(-p.lag)) {
			n = i
		}
	}
	if n >= len(p.states)-1 {
		return nil, false
	}
	return p.states[n].enis, true
}
