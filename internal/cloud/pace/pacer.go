package pace

import (
	"math"
	"time"
)

// The pacer's constants. Rates are in calls per second.
const (
	startRate  = 100 // the highest that EC2 publishes for an action (EC2 Developer Guide, "Request throttling")
	startBurst = 100 // likewise, the largest bucket
	floorRate  = 0.5
	topRate    = 1000

	startWindow  = 4    // calls in flight while credit is spent that EC2's bucket may not have,
	windowGrowth = 0.25 // and how many more for each that passes

	searchRate = 4.0   // where the search for the granted rate begins
	searchStep = 0.7   // added for each call that passes: the rate doubles every second
	cut        = 0.85  // what is kept of the measured rate after a refusal
	probe      = 0.006 // relative growth for each call that passes, at low rates
	probeSlope = 0.1   // at higher ones: growth in calls per second, every second,
	probeShare = 0.01  // and besides, for each call that passes
	probeLate  = 0.02  // for each call that passes, once nothing was refused for probeAfter
	probeAfter = 20 * time.Second

	firstHold = 500 * time.Millisecond // how long the queue stands still after a refusal, at most holdCalls calls
	holdCalls = 5
	longHold  = 30 * time.Second
	storeTime = 2 // seconds of unused rate after which credit counts as saved up
	storeGain = 0.02
)

// pacer decides when the next call of one action, or one account, may be sent. It is a token
// bucket whose rate is not configured but learned, with no clock of its own:
// time comes in with every call. It is not safe for concurrent use.
//
// EC2 refuses a call when a bucket at its end, of unknown size and refill rate,
// is empty. That gives the pacer an exact measurement: between two refusals the
// bucket went from empty to empty, so the calls that passed in between, divided
// by the time, are the refill rate, or this client's share of it when others
// draw from the same bucket. It works in three phases:
//
//   - open: nothing was ever refused. Calls go out at startRate.
//   - searching, after the first refusal: the queue stands still for firstHold,
//     then the rate starts at searchRate and doubles every second until the next
//     refusal.
//   - settled: each refusal sets the rate to cut times the measured rate, and
//     calls that pass while others queue raise it: mostly by a fixed amount a
//     second, so that among clients that share a bucket small shares grow at
//     the cost of large ones, and at low rates by less, so that refusals stay
//     rare. The rate swings around the granted one in cycles of
//     some 40 calls at 1/s, 70 at 5/s and 500 at 20/s, with one refusal each.
//
// Saved-up credit is spent carefully: only so many calls are in flight, more
// with each that passes, so that no burst is refused as a whole.
//
// A refusal that hits credit saved up while the action was hardly used says
// nothing about the rate; it halves the burst instead. Refusals with nothing
// passing in between double the hold, up to longHold.
type pacer struct {
	phase   phase
	rate    float64
	burst   float64 // most credit that can be saved up
	credit  float64 // calls that may be sent now; brought up to date until at
	at      time.Time
	held    time.Time // nothing is sent before
	ceiling Limit

	// Since the last refusal:
	epoch  int       // counts refusals; calls sent before one do not judge the rate after it
	since  time.Time // when it was
	passed int       // calls sent since and not refused
	busy   bool      // no credit was saved up since: passed measures the granted rate

	inflight int     // calls sent and not answered
	window   float64 // most of them while saved-up credit is spent

	strikes int // refusals in a row with nothing passing in between
}

type phase int

const (
	open phase = iota
	searching
	settled
)

// grant is a pacer's part of the right to send one call, to be handed back
// with what came of it. The zero grant is of no pacer.
type grant struct {
	pacer  *pacer
	epoch  int
	queued bool // the pacer was what held calls back
	stored bool // drawn from saved-up credit
}

// whenAnswered is the delay of a call that waits for the answers of others.
const whenAnswered = time.Hour

// newPacer returns a pacer that has not seen a call yet. A zero ceiling sets no limit.
func newPacer(now time.Time, ceiling Limit) *pacer {
	p := &pacer{rate: startRate, burst: startBurst, window: startWindow, at: now, since: now, ceiling: ceiling}
	if ceiling.Rate > 0 {
		p.rate = min(p.rate, ceiling.Rate)
	}
	p.burst = p.maxBurst()
	p.credit = p.burst
	return p
}

func (p *pacer) maxBurst() float64 {
	if p.ceiling.Burst > 0 {
		return float64(p.ceiling.Burst)
	}
	return startBurst
}

// delay tells how long after now the next call may be sent; 0 is at once,
// whenAnswered after another was answered.
func (p *pacer) delay(now time.Time) time.Duration {
	if now.Before(p.held) {
		return p.held.Sub(now)
	}
	if !p.busy && float64(p.inflight) >= p.window {
		return whenAnswered
	}
	p.accrue(now)
	// The tolerance keeps a rounding error from asking for a wait of nothing.
	if p.credit >= 1-1e-9 {
		return 0
	}
	wait := time.Duration(math.Ceil((1 - p.credit) / p.rate * float64(time.Second)))
	return max(wait, time.Microsecond)
}

// take draws one grant; delay should have been 0 at now.
func (p *pacer) take(now time.Time) grant {
	p.accrue(now)
	got := grant{pacer: p, epoch: p.epoch, queued: p.credit < 2, stored: !p.busy}
	p.credit--
	p.inflight++
	return got
}

// unused hands back a grant with which nothing was sent.
func (g grant) unused() {
	if g.pacer != nil {
		g.pacer.inflight--
		g.pacer.credit++
	}
}

// lost reports that a call got no answer that says anything about its rate.
func (g grant) lost() {
	if g.pacer != nil {
		g.pacer.inflight--
	}
}

func (p *pacer) accrue(now time.Time) {
	dt := now.Sub(p.at).Seconds()
	if dt <= 0 {
		return
	}
	p.at = now
	p.credit += dt * p.rate
	if p.credit > max(2, storeTime*p.rate) {
		p.busy = false
	}
	p.credit = min(p.burst, p.credit)
}

// pass reports that the call was not refused for its rate.
func (g grant) pass(now time.Time) {
	p := g.pacer
	if p == nil {
		return
	}
	p.inflight--
	if g.epoch != p.epoch {
		return
	}
	p.passed++
	p.strikes = 0
	if g.stored {
		p.window += windowGrowth
		p.burst = min(p.maxBurst(), p.burst+storeGain)
	}
	if !g.queued {
		return
	}
	p.accrue(now)
	switch {
	case p.phase == searching:
		p.rate += searchStep
	case now.Sub(p.since) > probeAfter:
		p.rate += max(probeLate, p.growth())
	default:
		p.rate += p.growth()
	}
	p.clamp()
}

func (p *pacer) growth() float64 {
	return min(probe*p.rate, probeSlope/p.rate+probeShare)
}

// refuse reports that the call was throttled, and tells whether the pacer took
// notice: calls that were in flight together count as one refusal.
func (g grant) refuse(now time.Time) bool {
	p := g.pacer
	p.inflight--
	if g.epoch != p.epoch {
		return false
	}
	p.accrue(now)
	switch elapsed := now.Sub(p.since).Seconds(); {
	case p.phase == open:
		p.phase, p.rate, p.burst = searching, searchRate, max(1, p.burst/2)
	case !p.busy:
		p.rate, p.burst = cut*p.rate, max(1, p.burst/2)
	case p.passed == 0:
		p.strikes++
		p.rate /= 2
	case elapsed > 0:
		p.phase, p.rate = settled, cut*min(p.rate, float64(p.passed)/elapsed)
	}
	p.clamp()

	p.stop(now)
	return true
}

// stop has the queue stand still, and what was learned begin anew.
func (p *pacer) stop(now time.Time) {
	p.held = now.Add(p.hold())
	p.epoch++
	p.since, p.passed, p.busy = now, 0, true
	// EC2's bucket is empty now. What flows into it while the queue stands
	// still is left there: it may be too small to hold it.
	p.credit, p.at = 1, p.held
	p.window = startWindow
}

// resume has a pacer that was out of use go on with what it knew, after a refusal.
func (p *pacer) resume(now time.Time) {
	if p.phase == open {
		p.phase, p.rate = searching, searchRate
	}
	p.strikes = 0
	p.stop(now)
}

// search starts a search for the granted rate that is not known to be above one.
func (p *pacer) search(now time.Time, rate float64) {
	p.phase, p.rate, p.busy = searching, rate, true
	p.credit, p.at, p.since = 1, now, now
	p.clamp()
}

func (p *pacer) hold() time.Duration {
	hold := firstHold
	if p.phase == settled {
		hold = min(hold, time.Duration(holdCalls/p.rate*float64(time.Second)))
	}
	return min(longHold, hold<<min(p.strikes, 8))
}

func (p *pacer) clamp() {
	p.rate = max(floorRate, min(topRate, p.rate))
	if p.ceiling.Rate > 0 {
		p.rate = min(p.rate, p.ceiling.Rate)
	}
}
