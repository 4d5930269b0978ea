package pace

import (
	"math"
	"time"
)

// A process cannot distinguish peers that adapt from a client that never backs off: in both cases refusals
// continue although it slows down. Therefore, while calls are refused, all peers slow down together at the same
// times of the clock, like the quiet periods of radios that share a band (IEEE 802.22). Refusals in a quiet
// period do not depend on the peers' rates.
const (
	listenEvery = 12 * time.Second       // from the start of one quiet period to the next
	listenFor   = 5 * time.Second        // length of a quiet period; at 1 call a second, enough for one call
	listenShare = 0.25                   // of the rate that a peer keeps; together less than EC2 grants, because peers send at most 1/(1-mostBorne) times that
	listenGuard = 500 * time.Millisecond // the bucket may still be empty, and clocks of peers may be late

	heardMost = 30.0 // minimum replies to remember if quiet periods have few
	heardNone = 2.0  // passes assumed before the first reply
	changed   = 4.0  // a row of passes with a probability below exp(-changed) means that the refusals have ended

	noticed   = 0.02 // share of refusals above which they are tolerated; below, each one cuts the rate
	mostBorne = 0.64 // maximum tolerated share: slightly more than that of a proportional share next to 8 calls a second on 5/s
	slope     = 1.5  // tolerance beyond the refusals in quiet periods, in calls per call that passes
	undone    = 0.1  // tolerated share from which earlier cuts are reverted
	gain      = 0.1  // relative change of the rate by one tolerated refusal
	outage    = 16   // refusals in a row that mean that nothing passes

	probePeers = 0.002 // relative growth per call that passes, added to the pacer's; offsets one random refusal in a hundred
)

// listener estimates, for a pacer among peers, the refusals that do not depend on the peers' rates.
type listener struct {
	heard, refused float64   // calls in quiet periods, and those refused; old ones count less
	passedInRow    float64   // calls passed since the last refusal
	last           int64     // the period of the last call heard
	refusedInRow   int       // calls refused since the last pass
	at             time.Time // time of the last refusal
	cut            int64     // the period of the last cut of the rate
	floor          float64   // the rate after that cut
	spared         float64   // seconds of the epoch lost to quiet periods
}

// period returns the number of the period at a time, and the time since its start. A period starts with its
// quiet part.
func period(t time.Time) (n int64, into time.Duration) {
	ns := t.UnixNano()
	return ns / int64(listenEvery), time.Duration(ns % int64(listenEvery))
}

// share returns the share of the rate in use at t, and until when.
func (l *listener) share(t time.Time) (float64, time.Time) {
	_, into := period(t)
	if into >= listenFor {
		return 1, t.Add(listenEvery - into)
	}
	if !l.worthListening(t) {
		return 1, t.Add(listenFor - into)
	}
	return listenShare, t.Add(listenFor - into)
}

// worthListening reports whether calls have been refused recently.
func (l *listener) worthListening(t time.Time) bool {
	return t.Sub(l.at) < 2*listenEvery || l.background() > noticed
}

// listens reports whether a call at t falls in a quiet period.
func (l *listener) listens(t time.Time) bool {
	_, into := period(t)
	return listenGuard <= into && into < listenFor && l.worthListening(t)
}

// hear learns from a reply.
func (l *listener) hear(g grant, refused bool, now time.Time) {
	l.refusedInRow++
	if refused {
		l.at = now
	} else {
		l.refusedInRow = 0
	}
	if !g.listens {
		return
	}
	if n, _ := period(g.at); n > l.last {
		l.last = n
		if l.heard > heardMost {
			l.refused *= heardMost / l.heard
			l.heard = heardMost
		}
	}
	l.heard++
	l.passedInRow++
	if refused {
		l.refused++
		l.passedInRow = 0
	}
	if l.passedInRow*math.Log(1-l.background()) < -changed {
		l.heard, l.refused, l.passedInRow = 0, 0, 0
	}
}

// background is the share of calls that are refused independently of the peers' rates.
func (l *listener) background() float64 { return l.refused / (l.heard + heardNone) }

// borne is the share of refusals that do not cut the rate. If the background is small, it is the
// background. Next to a client that never backs off, more calls mean more refusals: the peers together may then
// send as much as EC2 grants, which is their proportional share.
func (l *listener) borne() float64 {
	b := min(mostBorne, l.background())
	return min(mostBorne, 1-1/(1/(1-b)+min(1-listenShare, slope*b)))
}

// hear learns from a reply. When it shows that refusals do not depend on the peers' rates, it reverts the
// last cuts.
func (p *pacer) hear(g grant, refused bool, now time.Time) {
	if p.peers == nil {
		return
	}
	was := p.peers.borne()
	p.peers.hear(g, refused, now)
	if was < undone && p.peers.borne() >= undone {
		p.rate = max(p.rate, p.before)
	}
}

// bears reports whether refusals independent of the peers' rates are being tolerated.
func (p *pacer) bears() bool {
	return p.peers != nil && p.phase == settled && p.peers.borne() > noticed && !p.nothingPasses()
}

// bear reports whether a refusal must not cut the rate, and in that case adapts the rate slightly.
func (p *pacer) bear(now time.Time) bool {
	switch {
	case p.bears():
		p.before = max(keep*p.before, p.rate)
		p.rate *= 1 - gain*(1-p.peers.borne())
	case p.wasCut(now):
		p.rate = min(p.rate, p.peers.floor)
	default:
		return false
	}
	p.clamp()
	return true
}

// wasCut reports whether the rate was cut since the start of the last quiet period. If so, it is not cut again
// before the next one.
func (p *pacer) wasCut(now time.Time) bool {
	if p.peers == nil || p.phase != settled || p.nothingPasses() {
		return false
	}
	n, _ := period(now)
	return p.peers.cut == n
}

// nothingPasses reports whether all calls seem to be refused, judged by the refusals in a row.
func (p *pacer) nothingPasses() bool { return p.peers != nil && p.peers.refusedInRow >= outage }
