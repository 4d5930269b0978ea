package pace

import (
	"math"
	"time"
)

// Peers that adapt and a client that never backs off look alike to each of
// them: both are refusals that go on although it slows down. What tells them
// apart is that all peers slow down together. So they do, at the same moments of
// the clock, while calls are refused: radios that share a band keep quiet
// periods for the same reason (IEEE 802.22). What is refused then is refused
// whatever the peers do.
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

// listener is what a pacer among peers knows of refusals that are not for the
// rates of the peers.
type listener struct {
	heard, refused float64   // calls sent in quiet periods, and of them refused; old ones count less
	passedInRow    float64   // passed since the last of these
	last           int64     // the period of the last call heard
	refusedInRow   int       // calls since the last that passed
	at             time.Time // of the last refusal
	cut            int64     // the period in which the rate was cut,
	floor          float64   // and what it was cut to
	spared         float64   // seconds of sending that quiet periods took from the epoch
}

// period is the number of a period, which begins with the quiet one, and the time since that began.
func period(t time.Time) (n int64, into time.Duration) {
	ns := t.UnixNano()
	return ns / int64(listenEvery), time.Duration(ns % int64(listenEvery))
}

// share is what is kept of the rate at t, and until when.
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

// worthListening reports whether calls are, or lately were, refused.
func (l *listener) worthListening(t time.Time) bool {
	return t.Sub(l.at) < 2*listenEvery || l.background() > noticed
}

// listens reports whether the answer to a call sent at t shows what is refused whatever the peers do.
func (l *listener) listens(t time.Time) bool {
	_, into := period(t)
	return listenGuard <= into && into < listenFor && l.worthListening(t)
}

// hear learns from the answer to a call.
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

// background is the share of calls that is refused whatever the peers do.
func (l *listener) background() float64 { return l.refused / (l.heard + heardNone) }

// borne is the share of refusals that is borne. It is the background's where that
// is small. A client that never backs off refuses more to peers that send more: they
// together may send as much as EC2 grants, which is their share in proportion.
func (l *listener) borne() float64 {
	b := min(mostBorne, l.background())
	return min(mostBorne, 1-1/(1/(1-b)+min(1-listenShare, slope*b)))
}

// hear learns from an answer. If it shows that refusals are not for the peers'
// rates, the cuts before were in vain.
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

// bears reports whether refusals are known that are not for the peers' rates.
func (p *pacer) bears() bool {
	return p.peers != nil && p.phase == settled && p.peers.borne() > noticed && !p.nothingPasses()
}

// bear has a refusal change the rate a little at most, if it is not to be cut, and
// reports whether it is not.
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

// wasCut reports whether the rate was cut since the last quiet period began. Until
// the next one has shown more, it is not cut deeper.
func (p *pacer) wasCut(now time.Time) bool {
	if p.peers == nil || p.phase != settled || p.nothingPasses() {
		return false
	}
	n, _ := period(now)
	return p.peers.cut == n
}

// nothingPasses reports whether so many calls were refused in a row that all are.
func (p *pacer) nothingPasses() bool { return p.peers != nil && p.peers.refusedInRow >= outage }
