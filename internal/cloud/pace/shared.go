package pace

import (
	"math"
	"time"
)

// The belief that refusals are shared between actions.
const (
	sharedAt = 2.0  // the state becomes shared when belief reaches this,
	apartAt  = 0.0  // and apart when it falls to this
	mostSure = 3.0  // bounds of belief, so that a change at EC2's side is noticed
	inDoubt  = 1.2  // what it is then: one refusal that fits, and the state is shared again
	echo     = 1.0  // gained when another action is refused right after one,
	near     = 2.0  // within so many seconds,
	silence  = -0.2 // when it is not: the state shared has to prove itself now and then
	odd      = -0.5 // when one bucket would not have refused the call, or earlier
	toomuch  = -1.5 // when more calls pass than one bucket would let

	unknownRate = 50.0 // assumed of a shared bucket: more than most grant
	tolerance   = 1.25 // by which a rate measured once is wrong,
	spare       = 2    // besides so many calls
	jitter      = 25 * time.Millisecond
)

// interval is the time since a refusal that a pacer took notice of. If there
// is one bucket for all actions, it was empty then.
type interval struct {
	action  *action // that was refused; nil when none was
	seq     uint64
	sent    time.Time
	passed  int  // calls of all actions sent since, and not refused
	toomuch bool // for one bucket
}

// refuse puts a refusal down to the action or to the account, and learns from
// it which of them it was.
func (s *Set) refuse(p permit, now time.Time) {
	var noticed bool
	if p.account.pacer != nil {
		p.own.lost()
		noticed = p.account.refuse(now) && s.shared
		s.yield(p.account.pacer, now)
	} else {
		noticed = p.own.refuse(now) && !s.shared
		s.yield(p.own.pacer, now)
	}
	if noticed {
		s.hear(p)
		s.decide(now)
	}
}

// pass learns from a call that was not refused.
func (s *Set) pass(p permit, now time.Time) {
	p.own.pass(now)
	p.account.pass(now)
	l := &s.last
	if l.action == nil || p.seq < l.seq {
		return
	}
	l.passed++
	rate := s.rate
	if rate == 0 {
		rate = unknownRate
	}
	if !l.toomuch && float64(l.passed) > spare+tolerance*rate*since(l.sent, p.sent) {
		l.toomuch = true
		s.believe(toomuch)
		s.decide(now)
	}
}

// hear learns from a refusal. If all actions share a bucket, it was empty at
// the last refusal, whatever the action, and is empty now: what passed in
// between is what flowed into it, and that much every time.
func (s *Set) hear(p permit) {
	l, took := s.last, since(s.last.sent, p.sent)
	got := float64(l.passed) / took
	fits := s.rate == 0 || math.Abs(float64(l.passed)-s.rate*took) <= spare+(tolerance-1)*s.rate*took
	switch {
	case l.action == nil || l.toomuch:
	case !fits:
		s.believe(odd)
	case l.action != p.action && took < near:
		s.believe(echo)
	case l.action == p.action || !s.shared:
		s.believe(silence)
	}
	if l.action != nil && l.passed > spare && took > jitter.Seconds() {
		if s.rate == 0 {
			s.rate = got
		}
		s.rate += (got - s.rate) / 2
	}
	if p.seq > l.seq {
		s.last = interval{action: p.action, seq: p.seq, sent: p.sent}
	}
}

// since is the seconds between the sending of two calls, which may have
// overtaken each other.
func since(a, b time.Time) float64 { return max(jitter, b.Sub(a)).Seconds() }

func (s *Set) believe(more float64) {
	s.belief = max(-mostSure, min(mostSure, s.belief+more))
}

// decide changes the state if the belief says so. What the actions' pacers
// knew is of no use then.
func (s *Set) decide(now time.Time) {
	switch {
	case !s.shared && s.belief >= sharedAt:
		s.shared = true
		s.account.resume(now)
		for _, a := range s.order {
			a.pacer = newPacer(now, a.ceiling, s.options.Peers)
		}
	case s.shared && s.belief <= apartAt:
		s.shared, s.belief = false, inDoubt
		for _, a := range s.order {
			a.pacer = newPacer(now, a.ceiling, s.options.Peers)
			a.pacer.search(now, s.account.rate)
		}
	default:
		return
	}
	s.options.Logger.Info("Learned whether EC2's refusals are shared between actions", "shared", s.shared, "rate", s.account.rate)
}
