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

	unknownRate = 50.0                  // assumed of a shared bucket: more than most grant
	jitter      = 25 * time.Millisecond // by which calls may overtake each other
	stray       = 0.05                  // chance of a refusal for which there is no reason,
	emptied     = 0.5                   // and of one right after another from the same bucket
)

// refusal is one that a pacer took notice of.
type refusal struct {
	seq    uint64
	sent   time.Time
	passed int  // calls of other actions that were sent after it and passed
	judged bool // no more is learned from it
}

// refuse puts a refusal down to the action or to the account.
func (s *Set) refuse(p permit, now time.Time) {
	noticed := false
	if p.account.pacer != nil {
		p.own.lost()
		if noticed = p.account.refuse(now); noticed && s.shared {
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
	if r == nil || r.seq == 0 || r.judged || s.shared && s.account.phase == searching {
		return
	}
	tokens := max(jitter, p.sent.Sub(r.sent)).Seconds() * s.sharedRate()
	chance := max(stray, min(1-stray, tokens-float64(r.passed-1))) // of passing, if the bucket is shared
	if r.passed == 0 {
		chance = emptied
	}
	switch {
	case refused:
		r.judged = true // those in flight with it say the same
		s.believe(math.Log((1 - chance) / stray))
	case r.passed > 0: // the first one may have got what the refused one lacked little of
		r.judged = chance == stray
		s.believe(math.Log(chance / (1 - stray)))
		fallthrough
	default:
		r.passed++
	}
}

// sharedRate is the rate of a bucket that all actions share, as far as known.
func (s *Set) sharedRate() float64 {
	if s.account.phase == settled {
		return s.account.rate
	}
	return unknownRate
}

func (s *Set) believe(more float64) {
	s.belief = max(beliefMin, min(beliefMax, s.belief+more))
}

// decide changes the state if the belief says so. What the actions' pacers
// knew is of no use then.
func (s *Set) decide(now time.Time) {
	switch {
	case !s.shared && s.belief >= sharedAt:
		s.shared = true
		s.account.resume(now)
		for _, a := range s.order {
			a.pacer = newPacer(now, a.ceiling)
		}
	case s.shared && s.belief <= apartAt:
		s.shared = false
		for _, a := range s.order {
			a.pacer = newPacer(now, a.ceiling)
			a.pacer.search(now, s.account.rate)
		}
	default:
		return
	}
	s.Logger.Debug("Learned whether EC2's refusals are shared between actions", "shared", s.shared, "rate", s.account.rate)
}
