package pace

import (
	"math"
	"time"
)

// The belief that refusals are shared between actions, in log odds.
const (
	sharedAt   = 3.0  // the state becomes shared when belief reaches this,
	apartAt    = 0.0  // and apart when it falls to this
	beliefMin  = -3.0 // so that a change of EC2's mind is noticed
	beliefMax  = 4.0
	beliefFade = 0.5 // lost with each refusal in the state shared, which tests too little on its own

	jitter       = 25 * time.Millisecond // by which calls may overtake each other
	strayRefusal = 0.05                  // of calls that another action's refusals say nothing about
)

// refusal is one that a pacer took notice of.
type refusal struct {
	seq  uint64
	sent time.Time
}

// refuse puts a refusal down to the action or to the account.
func (s *Set) refuse(p permit, now time.Time) {
	a := p.action
	noticed := false
	switch {
	case p.probe:
		p.own.lost()
		p.account.lost()
	case p.account.pacer != nil:
		p.own.lost()
		if noticed = p.account.refuse(now); noticed {
			s.belief -= beliefFade
		}
	default:
		noticed = p.own.refuse(now)
	}
	s.judge(p, true)
	if !noticed {
		return
	}
	a.refused = refusal{p.seq, p.sent}
	if s.account != nil {
		s.probe(a, now)
	}
}

// judge learns from the first outcome of an action after a refusal of another
// one: how likely it would be if both drew on one bucket, empty then, against
// how likely it is if they do not.
func (s *Set) judge(p permit, refused bool) {
	var r refusal
	for _, a := range s.order {
		if a != p.action && a.refused.seq < p.seq && a.refused.seq > r.seq {
			r = a.refused
		}
	}
	if r.seq <= p.action.judged {
		return
	}
	p.action.judged = r.seq
	rate := searchRate
	if s.account != nil {
		rate = s.account.rate
	}
	token := max(jitter, p.sent.Sub(r.sent)).Seconds() * rate
	token = min(1-strayRefusal, token)
	if refused {
		s.belief += math.Log((1 - token) / strayRefusal)
	} else {
		s.belief += math.Log(token / (1 - strayRefusal))
	}
	s.belief = max(beliefMin, min(beliefMax, s.belief))
	switch now := s.clock.Now(); {
	case s.account == nil && s.belief >= sharedAt:
		s.account = newPacer(now, Limit{})
		s.account.take(now).refuse(now)
		s.relearn(now)
	case s.account != nil && s.belief <= apartAt:
		s.account = nil
		s.relearn(now)
	}
}

// relearn has the actions' own pacers forget what they learned in another state.
func (s *Set) relearn(now time.Time) {
	s.Logger.Debug("learned whether EC2's refusals are shared between actions", "shared", s.account != nil)
	for _, a := range s.order {
		a.pacer = newPacer(now, a.ceiling)
	}
}

// probe sends a call of another action right after a refusal, if one waits: if
// it passes, the bucket may not be a shared one.
func (s *Set) probe(refused *action, now time.Time) {
	var best *waiter
	for _, a := range s.order {
		if a == refused {
			continue
		}
		if w := s.head(a, now); w != nil && a.pacer.delay(now) == 0 && (best == nil || w.action.queue.byPriority.before(w, best)) {
			best = w
		}
	}
	if best != nil {
		s.grant(best, now, true)
	}
}
