package pace

import (
	"math"
	"time"
)

// A process cannot distinguish peers that adapt from a client that never backs off: in both cases refusals
// go on although it slows down. Therefore, while calls are refused, all peers slow down together at the same
// times of the clock, as radios that share a band keep quiet periods (IEEE 802.22). Refusals in a quiet
// period do not depend on the peers' rates.
const (
	listenEvery = 12 * time.Second       // from the beginning of one quiet period to the next
	listenFor   = 5 * time.Second        // how long it lasts: at 1 call a second, enough to send one
	listenShare = 0.25                   // of its rate is what a peer keeps: together less than EC2 grants, while they send at most 1/(1-mostBorne) times that
	listenGuard = 500 * time.Millisecond // calls sent earlier may meet an empty bucket, and calls of peers whose clocks are late

	heardMost = 30.0 // answers that are remembered, where a quiet period has fewer
	heardNone = 2.0  // passes that are assumed before the first answer
	changed   = 4.0  // passes in a row that were as likely as exp(-changed) say that the refusals have ended

	noticed   = 0.02 // more refusals than these are borne; at fewer each is a cut
	mostBorne = 0.64 // at most so many are: beside 8 calls a second on 5/s, those of a share in proportion and a little more
	slope     = 1.5  // how much more is borne than is refused in quiet periods: calls for each that passes
	undone    = 0.1  // once so many are borne, the cuts before were in vain
	gain      = 0.1  // what one answer changes of the rate then
	outage    = 16   // so many refusals in a row mean that nothing passes

	probePeers = 0.002 // relative growth for each call that passes, besides the pacer's: one random refusal in a hundred is made up for
)

// listener estimates, for a pacer among peers, the refusals that do not depend on the peers' rates.
type listener struct {
	heard, refused float64   // calls sent in quiet periods, and those refused; old ones count less
	passedInRow    float64   // calls passed since the last refusal
	last           int64     // the period of the last call heard
	refusedInRow   int       // calls refused since the last that passed
	at             time.Time // of the last refusal
	cut            int64     // the period of the last cut of the rate
	floor          float64   // the rate after it
	spared         float64   // seconds of the epoch lost to quiet periods
}

// period returns the number of the period at a time, and the time since its start. A period starts with its
// quiet part.
func period(t time.Time) (n int64, into time.Duration) {
	ns := t.UnixNano()
	return ns / int64(listenEvery), time.Duration(ns % int64(listenEvery))
}

// share is the share of the rate in use at t, and until when.
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

// listens reports whether a call at t is in a quiet period.
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
// background. Beside a client that never backs off, more calls mean more refusals: then the peers together
// may send as much as EC2 grants, which is their proportional share.
func (l *listener) borne() float64 {
	b := min(mostBorne, l.background())
	return min(mostBorne, 1-1/(1/(1-b)+min(1-listenShare, slope*b)))
}

// hear learns from a reply. If it shows that refusals do not depend on the peers' rates, it reverts the
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

// bears reports whether there are refusals that do not depend on the peers' rates.
func (p *pacer) bears() bool {
	return p.peers != nil && p.phase == settled && p.peers.borne() > noticed && !p.nothingPasses()
}

// bear reports whether a refusal must not cut the rate, and if so adapts the rate a little.
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

// wasCut reports whether the rate was cut since the start of the last quiet period. Then it is not cut again
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
