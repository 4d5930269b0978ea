package pace

import (
	"math"
	"time"
)

// Evidence that one bucket serves all actions, in points. Between two refusals that a pacer learned from, such a
// bucket goes from empty to empty.
const (
	sharedAt     = 2.0 // points at which the state becomes shared,
	apartAt      = 0.0 // and at which it becomes apart again
	mostEvidence = 3.0 // maximum points for and against, so that a change at EC2 is noticed
	afterApart   = 1.2 // points left when the state becomes apart: one matching refusal makes it shared again

	// Points for a refusal, and for calls that pass.
	soonRefused  = 1.0  // of another action than the previous one, soon after it
	laterRefused = -0.2 // otherwise: the state shared has to prove itself regularly
	wrongNumber  = -0.5 // after more or fewer passed calls than one bucket grants in the time
	moreThanRate = -1.5 // once, when more calls have passed than one bucket can grant

	soon          = 2.0                   // seconds
	unknownRate   = 50.0                  // calls per second, of a shared bucket not yet measured: more than most grant
	rateError     = 0.25                  // relative error of a measured rate,
	countError    = 2                     // and error in calls
	shortInterval = 25 * time.Millisecond // calls sent within it may overtake each other
)

// interval is the time since the last refusal that a pacer learned from.
type interval struct {
	action   *action // the refused action; nil if none was
	seq      uint64
	sent     time.Time
	passed   int  // calls of all actions sent since and not refused
	exceeded bool // passed is more than one bucket can grant
}

// refuse attributes a refusal to the action or to the account, and updates the evidence for either.
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
		s.endInterval(p)
		s.updateState(now)
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
	if !l.exceeded && float64(l.passed) > countError+(1+rateError)*rate*seconds(l.sent, p.sent) {
		l.exceeded = true
		s.addEvidence(moreThanRate)
		s.updateState(now)
	}
}

// endInterval learns from a refusal. If all actions share a bucket, it was empty at the last refusal of any
// action and is empty now: the calls that passed in between used what flowed in, at the same rate every
// time.
func (s *Set) endInterval(p permit) {
	l, took := s.last, seconds(s.last.sent, p.sent)
	fits := s.rate == 0 || math.Abs(float64(l.passed)-s.rate*took) <= countError+rateError*s.rate*took
	switch {
	case l.action == nil || l.exceeded:
	case !fits:
		s.addEvidence(wrongNumber)
	case l.action != p.action && took < soon:
		s.addEvidence(soonRefused)
	case l.action == p.action || !s.shared:
		s.addEvidence(laterRefused)
	}
	if l.action != nil && l.passed > countError && took > shortInterval.Seconds() {
		measured := float64(l.passed) / took
		if s.rate == 0 {
			s.rate = measured
		}
		s.rate += (measured - s.rate) / 2
	}
	if p.seq > l.seq {
		s.last = interval{action: p.action, seq: p.seq, sent: p.sent}
	}
}

// seconds is the time between the sending of two calls, which may have overtaken each other.
func seconds(a, b time.Time) float64 { return max(shortInterval, b.Sub(a)).Seconds() }

func (s *Set) addEvidence(points float64) {
	s.evidence = max(-mostEvidence, min(mostEvidence, s.evidence+points))
}

// updateState changes the state according to the evidence, which invalidates the knowledge of the actions'
// pacers.
func (s *Set) updateState(now time.Time) {
	switch {
	case !s.shared && s.evidence >= sharedAt:
		s.shared = true
		s.account.resume(now)
		for _, a := range s.order {
			a.pacer = newPacer(now, a.ceiling, s.options.Peers)
		}
	case s.shared && s.evidence <= apartAt:
		s.shared, s.evidence = false, afterApart
		for _, a := range s.order {
			a.pacer = newPacer(now, a.ceiling, s.options.Peers)
			a.pacer.search(now, s.account.rate)
		}
	default:
		return
	}
	s.options.Logger.Info("Learned whether EC2's actions share a rate limit", "shared", s.shared, "rate", s.account.rate)
}
