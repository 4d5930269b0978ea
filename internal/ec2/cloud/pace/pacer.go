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

	startWindow  = 4    // initial limit of calls in flight while saved-up credit is spent, because EC2's bucket may hold less
	windowGrowth = 0.25 // growth of that limit per call that passes

	searchRate = 4.0   // start of the search for the granted rate
	searchStep = 0.7   // added per call that passes: the rate doubles every second
	keep       = 0.85  // share of the measured rate kept after a refusal
	probe      = 0.006 // relative growth per call that passes, at low rates
	probeSlope = 0.1   // at higher rates: growth in calls per second, every second,
	probeShare = 0.01  // plus this per call that passes
	probeLate  = 0.02  // per call that passes, after probeAfter without a refusal
	probeAfter = 20 * time.Second

	exhausted = 4 // excess of refusals over passes that means EC2 lacks the saved-up credit

	judged       = 4     // replies needed to judge a rate
	judgedSearch = 8     // likewise, a rate at which a search ends
	judgedDeep   = 10    // likewise, a rate that was at least halved
	judgedOthers = 12    // likewise, a rate beside clients that are known not to back off
	between      = 40    // minimum number of replies between two cuts beside such clients
	trial        = 20    // number of replies after a cut that show whether it helped
	inVain       = 3     // refusals among those replies that show that the cut did not help
	slack        = 2     // tolerance, in calls, of the model of EC2's bucket
	memory       = 3     // number of cuts for which clients that do not back off are remembered
	overdrive    = 2.4   // maximum calls per call that passes
	recovery     = 0.02  // relative growth per call that passes beside such clients, up to the rate before the cut
	probeOthers  = 0.002 // likewise, above that rate

	firstHold = 500 * time.Millisecond // how long the queue is held after a refusal, at most for holdCalls calls
	holdCalls = 5
	longHold  = 30 * time.Second
	storeTime = 2    // seconds of unused rate after which credit counts as saved up
	storeGain = 0.02 // growth of the maximum credit per call that passes on saved-up credit
)

// pacer decides when the next call of an action, or of an account, may be sent. It is a token bucket with a
// learned rate and without a clock: callers pass the time. It is not safe for concurrent use.
//
// It models a bucket at EC2, of unknown size, that grants a rate. Between two refusals that bucket goes from empty
// to empty, so the calls that pass in between, divided by the time, are the granted rate, or this client's share
// of it. The pacer has three phases:
//
//   - open: the bucket has never been empty. Calls are sent at startRate. Single refusals mean nothing; the bucket
//     is considered empty once refusals outnumber passes by the constant exhausted or, among peers, at the first refusal.
//   - searching: the queue is held for firstHold, then the rate starts at searchRate and doubles every second until
//     a call is refused.
//   - settled: a refusal cuts the rate to a share of the granted one (keep), and calls that pass while others are queued
//     raise it. It mostly rises by a fixed amount a second, so that among clients that share a bucket small shares
//     grow at the cost of large ones. At low rates it rises by less, so that refusals stay rare. It swings around the
//     granted one in cycles of about 40 calls at 1/s, 70 at 5/s and 500 at 20/s, with one refusal each.
//
// A cut is a test of the model. Below the granted rate EC2 has no reason to refuse calls. If it refuses one of the
// first calls although the modelled bucket is not empty, or continues to refuse after the rate was halved, the
// refusals do not depend on this client's rate: they are random, or due to another client that does not yield.
// Single refusals are then tolerated, the rate returns to its value before the cut, and the next test comes much later.
// The rate stays below a multiple of the granted one (overdrive), which bounds the number of wasted calls. Among peers this
// would escalate, so they run their tests together instead; see listen.go.
//
// Saved-up credit is spent carefully: few calls are in flight, and more with each that passes, so that no burst is
// refused as a whole. If EC2 refuses calls on saved-up credit, that says nothing about the rate, so the maximum credit is
// halved instead. Cuts with no pass in between double the hold, up to longHold.
type pacer struct {
	phase   phase
	rate    float64
	burst   float64 // maximum credit that can be saved up
	credit  float64 // calls that may be sent, as of at
	at      time.Time
	held    time.Time // no call is sent before this time
	ceiling Limit

	peers *listener // nil if no processes like this one draw on the same buckets

	granted float64 // the rate that EC2 grants, as measured at the last cut
	before  float64 // the rate before that cut; 0 once it is undone
	others  int     // cuts for which refusals are still assumed not to depend on the rate

	// The epoch since the last cut, or since it was undone:
	epoch  int       // number of the epoch; calls of earlier ones do not judge its rate
	since  time.Time // start
	sent   int       // calls, except those not sent in the end
	passed int       // calls not refused
	missed int       // calls refused
	busy   bool      // no credit was saved up, so passed measures the granted rate
	score  int       // passes minus refusals while credit is saved up, at most 0

	inflight int     // calls awaiting a reply
	window   float64 // maximum in flight while saved-up credit is spent

	strikes int // cuts in a row with no pass in between
}

type phase int

const (
	open phase = iota
	searching
	settled
)

// grant is a pacer's permission to send a call. It is returned with the outcome. The zero grant belongs to no
// pacer.
type grant struct {
	pacer   *pacer
	epoch   int
	at      time.Time // time of the grant
	nth     int       // number of earlier grants in the epoch
	queued  bool      // calls were waiting for the pacer
	stored  bool      // drawn from saved-up credit
	listens bool      // sent in a quiet period
}

// whenAnswered is the delay of a call that waits for replies to other calls.
const whenAnswered = time.Hour

// newPacer returns a pacer in its initial state. A zero ceiling sets no limit; peers is Options.Peers.
func newPacer(now time.Time, ceiling Limit, peers bool) *pacer {
	p := &pacer{rate: startRate, burst: startBurst, window: startWindow, at: now, since: now, ceiling: ceiling}
	if peers {
		p.peers = &listener{}
	}
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

// delay is the time until the next call may be sent; whenAnswered means after the reply to another call.
func (p *pacer) delay(now time.Time) time.Duration {
	if now.Before(p.held) {
		return p.held.Sub(now)
	}
	if !p.busy && float64(p.inflight) >= p.window {
		return whenAnswered
	}
	p.accrue(now)
	// The tolerance prevents a rounding error from causing a wait of zero.
	if p.credit >= 1-1e-9 {
		return 0
	}
	for missing, t := 1-p.credit, p.at; ; {
		rate, until := p.current(t)
		at := t.Add(time.Duration(math.Ceil(missing / rate * float64(time.Second))))
		if !at.After(until) {
			return max(at.Sub(now), time.Microsecond)
		}
		missing, t = missing-rate*until.Sub(t).Seconds(), until
	}
}

// take returns a grant. delay(now) must be 0.
func (p *pacer) take(now time.Time) grant {
	p.accrue(now)
	got := grant{pacer: p, epoch: p.epoch, at: now, nth: p.sent, queued: p.credit < 2, stored: !p.busy}
	got.listens = p.peers != nil && p.phase != open && p.peers.listens(now)
	p.credit--
	p.inflight++
	p.sent++
	return got
}

// unused returns a grant for which no call was sent.
func (g grant) unused() {
	if g.pacer != nil {
		g.pacer.inflight--
		g.pacer.credit++
		if g.epoch == g.pacer.epoch {
			g.pacer.sent--
		}
	}
}

// lost reports that the reply to a call says nothing about the rate.
func (g grant) lost() {
	if g.pacer != nil {
		g.pacer.inflight--
	}
}

func (p *pacer) accrue(now time.Time) {
	full := max(2, p.burst, storeTime*p.rate)
	for p.at.Before(now) {
		rate, until := p.current(p.at)
		if until.After(now) || p.credit > full {
			until = now
		}
		dt := until.Sub(p.at).Seconds()
		p.at = until
		p.credit += dt * rate
		if p.peers != nil {
			p.peers.spared += dt * (1 - rate/p.rate)
		}
	}
	if p.credit > max(2, storeTime*p.rate) {
		p.busy = false
	}
	p.credit = min(p.burst, p.credit)
}

// current returns the rate at t, and until when it applies.
func (p *pacer) current(t time.Time) (rate float64, until time.Time) {
	if p.peers == nil || p.phase == open {
		return p.rate, t.Add(whenAnswered)
	}
	share, until := p.peers.share(t)
	return min(p.rate, share*max(p.rate, p.before)), until
}

// pass reports that a call was not throttled.
func (g grant) pass(now time.Time) {
	p := g.pacer
	if p == nil {
		return
	}
	p.inflight--
	p.hear(g, false, now)
	if g.epoch != p.epoch {
		return
	}
	p.passed++
	p.strikes = 0
	p.score = min(0, p.score+1)
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
	case p.bears():
		p.rate += p.growth() + gain*p.peers.borne()*p.rate
	case p.others > 0 && p.rate < p.before:
		p.rate += recovery * p.rate
	case p.others > 0:
		p.rate = min(max(p.rate, overdrive*p.granted), p.rate+max(probeOthers*p.rate, p.growth()))
	case now.Sub(p.since) > probeAfter:
		p.rate += max(probeLate, p.growth())
	default:
		p.rate += p.growth()
	}
	p.clamp()
}

func (p *pacer) growth() float64 {
	high := probeSlope/p.rate + probeShare
	if p.peers != nil {
		high += probePeers * p.rate
	}
	return min(probe*p.rate, high)
}

// refuse reports that the call was throttled. It returns whether this reveals something about EC2's buckets: calls
// in flight at the same time count as one refusal, and refusals known not to depend on the rate count as none.
func (g grant) refuse(now time.Time) bool {
	p := g.pacer
	p.inflight--
	p.hear(g, true, now)
	if g.epoch != p.epoch {
		return false
	}
	p.accrue(now)
	unexplained := p.unexplained(g)
	p.missed++
	p.score--
	known := p.others > 0
	if unexplained || p.unhelped() {
		p.others = memory
	}
	switch {
	case p.phase == open || !p.busy:
		if p.score > -exhausted && p.peers == nil {
			return false
		}
		if p.phase == open {
			p.phase, p.rate = searching, searchRate
		}
		p.burst = max(1, p.burst/2)
	case p.bear(now):
		return false
	case p.passed+p.missed < p.enough():
		return false
	case p.passed == 0 || p.nothingPasses():
		p.strikes++
		if !known {
			p.rate /= 2
		}
	case p.others > 0 && p.tried():
		if p.missed >= inVain {
			p.undo(now)
		}
		return !known
	case known && p.passed+p.missed < between:
		return false
	default:
		p.cut(g.at.Sub(p.since))
	}
	p.clamp()
	p.stop(now)
	return !known
}

// tried reports whether the trial period after a cut is still running.
func (p *pacer) tried() bool {
	return p.phase == settled && p.before > 0 && p.passed+p.missed <= trial && p.peers == nil
}

// unexplained reports whether a call was refused although a bucket with the measured rate would not have been
// empty. Calls without a reply count as passed.
func (p *pacer) unexplained(g grant) bool {
	inflow := p.granted * g.at.Sub(p.since).Seconds()
	return p.tried() && inflow-float64(g.nth-p.missed) > slack
}

// unhelped reports whether refusals continue although the rate was halved.
func (p *pacer) unhelped() bool {
	return p.tried() && p.strikes == 0 && p.rate <= p.before/2 && p.missed >= inVain
}

// enough is the number of replies needed to judge the rate of the epoch.
func (p *pacer) enough() int {
	switch {
	case p.strikes > 0:
		return 0
	case p.phase == searching:
		return judgedSearch
	case p.others > 0:
		return judgedOthers
	case p.tried() && p.rate <= p.before/2:
		return judgedDeep
	}
	return judged
}

// undo restores the rate before the last cut.
func (p *pacer) undo(now time.Time) {
	p.rate, p.before = max(p.rate, p.before), 0
	p.epoch++
	p.since, p.sent, p.passed, p.missed = now, 0, 0, 0
}

// cut measures the rate granted during the epoch, and sets a lower one.
func (p *pacer) cut(took time.Duration) {
	if took <= 0 {
		return
	}
	p.others = max(0, p.others-1)
	seconds := took.Seconds()
	if p.peers != nil {
		seconds = max(listenShare*seconds, seconds-p.peers.spared)
	}
	p.phase, p.granted = settled, float64(p.passed)/seconds
	p.before = max(keep*p.before, p.rate)
	if p.passed+p.missed >= trial {
		p.before = min(p.before, overdrive*p.granted)
	}
	p.rate = keep * min(p.rate, p.granted)
	if p.peers != nil {
		p.peers.cut, _ = period(p.at)
		p.peers.floor = p.rate
	}
}

// stop holds the queue and restarts learning.
func (p *pacer) stop(now time.Time) {
	p.held = now.Add(p.hold())
	p.epoch++
	p.since, p.passed, p.missed, p.sent, p.score, p.busy = now, 0, 0, 0, 0, true
	// EC2's bucket is empty now. The tokens that flow in while the queue is held are not counted as credit: the
	// bucket may be too small to keep them.
	p.credit, p.at = 1, p.held
	p.window = startWindow
	if p.peers != nil {
		p.peers.spared = 0
	}
}

// resume restarts a pacer after a refusal that follows an idle time, and keeps what it learned before.
func (p *pacer) resume(now time.Time) {
	if p.phase == open {
		p.phase, p.rate = searching, searchRate
	}
	p.strikes = 0
	p.stop(now)
}

// search starts a search for the granted rate.
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
