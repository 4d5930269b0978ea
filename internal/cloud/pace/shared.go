package pace

import (
	"math"
	"time"
)

// The belief that refusals are shared between actions, in log odds.
const (
	sharedAt   = 3.0 // the state becomes shared when belief reaches this,
	apartAt    = 0.0 // and apart when it falls to this
	beliefMin  = -3.0
	beliefMax  = 4.0
	beliefFade = 0.5 // lost with each refusal in the state shared, which tests itself too little

	jitter  = 25 * time.Millisecond // by which calls may overtake each other
	stray   = 0.05                  // chance of a refusal for which there is no reason,
	emptied = 0.5                   // and of one right after another from the same bucket
)

// refusal is one that a pacer took notice of.
type refusal struct {
	seq    uint64
	sent   time.Time
	passed int  // calls of other actions that were sent after it and passed
	echoed bool // one of them was refused
}

// refuse puts a refusal down to the action or to the account.
func (s *Set) refuse(p permit, now time.Time) {
	noticed := false
	if p.account.pacer != nil {
		p.own.lost()
		if noticed = p.account.refuse(now); noticed && s.account != nil {
			s.believe(-beliefFade)
		}
	} else {
		noticed = p.own.refuse(now)
	}
	s.learn(p, true)
	if noticed {
		p.action.refused = refusal{seq: p.seq, sent: p.sent}
	}
	s.decide(now)
}

// learn holds the outcome of a call against the last refusal of another action
// before it was sent. If both draw on one bucket, that had less than one token
// then, and so many since as rate and time make: more than those calls do not
// pass. If they do not, hardly any is refused.
func (s *Set) learn(p permit, refused bool) {
	var r *refusal
	for _, a := range s.order {
		if a != p.action && a.refused.seq < p.seq && (r == nil || a.refused.seq > r.seq) {
			r = &a.refused
		}
	}
	if r == nil || r.seq == 0 || r.echoed {
		return
	}
	chance := emptied // of passing, if the bucket is shared
	if r.passed > 0 {
		tokens := max(jitter, p.sent.Sub(r.sent)).Seconds() * s.rate
		chance = max(stray, min(1-stray, tokens-float64(r.passed-1)))
	}
	if refused {
		r.echoed = true // those in flight with it say the same
		s.believe(math.Log((1 - chance) / stray))
		return
	}
	if r.passed++; r.passed > 1 { // the first one may have had what the refused one lacked little of
		s.believe(math.Log(chance / (1 - stray)))
	}
}

func (s *Set) believe(more float64) {
	s.belief = max(beliefMin, min(beliefMax, s.belief+more))
}

// decide changes the state if the belief says so. What the actions' pacers
// knew is of no use then.
func (s *Set) decide(now time.Time) {
	switch {
	case s.account == nil && s.belief >= sharedAt:
		s.account = newPacer(now, Limit{})
		s.account.take(now).refuse(now)
		for _, a := range s.order {
			a.pacer = newPacer(now, a.ceiling)
		}
	case s.account != nil && s.belief <= apartAt:
		s.rate = s.account.rate
		s.account = nil
		for _, a := range s.order {
			a.pacer = newPacer(now, a.ceiling)
			a.pacer.search(now, s.rate)
		}
	default:
		if s.account != nil {
			s.rate = s.account.rate
		}
		return
	}
	s.Logger.Debug("learned whether EC2's refusals are shared between actions", "shared", s.account != nil)
}
