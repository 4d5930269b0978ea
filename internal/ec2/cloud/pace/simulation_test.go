package pace

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/berthnet/berth/test/harness/check"
)

// bucket is EC2's side: a token bucket that the pacer knows nothing about.
type bucket struct {
	rate, size, tokens float64
	at                 time.Time
}

func (b *bucket) take(now time.Time) bool {
	b.tokens = min(b.size, b.tokens+now.Sub(b.at).Seconds()*b.rate)
	b.at = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// replies is a heap of calls in flight, by the time of their reply.
type reply struct {
	at      time.Time
	client  int
	grant   grant
	refused bool
}
type replies []reply

func (r replies) Len() int           { return len(r) }
func (r replies) Less(i, j int) bool { return r[i].at.Before(r[j].at) }
func (r replies) Swap(i, j int)      { r[i], r[j] = r[j], r[i] }
func (r *replies) Push(x any)        { *r = append(*r, x.(reply)) }
func (r *replies) Pop() any          { o := *r; x := o[len(o)-1]; *r = o[:len(o)-1]; return x }

// simulation is clients with endless queues that share one bucket, in time of its own.
type simulation struct {
	now      time.Time
	bucket   *bucket
	foreign  float64 // calls a second of a client that never backs off
	chance   float64 // of a refusal whatever the rate
	pacers   []*pacer
	inflight []int
	callers  int           // most calls of one client in flight
	latency  time.Duration // on average
	skew     time.Duration // from one client's clock to the next one's
	rng      *rand.Rand
	pending  replies
	next     time.Time // when the foreign client calls next
	quota    []int     // calls that each client still has to pass; nil: no end
}

// simulate has one client without peers, of 50 callers.
func simulate(b bucket) *simulation { return newSimulation(b, 1, false, 1) }

// simulatePeers has clients that are peers, also if it is just one.
func simulatePeers(b bucket, clients int, seed uint64) *simulation {
	return newSimulation(b, clients, true, seed)
}

func newSimulation(b bucket, clients int, peers bool, seed uint64) *simulation {
	s := &simulation{
		now: time.Unix(1e9, 0), bucket: &b, callers: 50, latency: 100 * time.Millisecond,
		inflight: make([]int, clients), rng: rand.New(rand.NewPCG(seed, 2)),
	}
	b.at, b.tokens = s.now, b.size
	for range clients {
		s.pacers = append(s.pacers, newPacer(s.now, Limit{}, peers))
	}
	return s
}

// tally is what became of the calls of a time.
type tally struct {
	passed, refused []int // per client
	seconds         float64
}

func sum(n []int) (s int) {
	for _, v := range n {
		s += v
	}
	return s
}

// rate is how many calls passed a second.
func (t tally) rate() float64 { return float64(sum(t.passed)) / t.seconds }

// wasted is the share of calls that were refused.
func (t tally) wasted() float64 {
	return float64(sum(t.refused)) / float64(sum(t.passed)+sum(t.refused))
}

// expect fails unless calls passed at a rate, ±20 %, and at most 5 % were refused.
func (t tally) expect(tb testing.TB, when string, rate float64) {
	tb.Helper()
	tb.Logf("%s: %.2f/s of %v/s passed, %.1f %% refused", when, t.rate(), rate, 100*t.wasted())
	if math.Abs(t.rate()-rate) > 0.2*rate || t.wasted() > 0.05 {
		tb.Errorf("%s: %.2f/s passed, want %v/s ± 20 %%; %.1f %% refused, want at most 5 %%", when, t.rate(), rate, 100*t.wasted())
	}
}

// clock is a client's.
func (s *simulation) clock(client int) time.Time { return s.now.Add(time.Duration(client) * s.skew) }

// callForeign makes the calls of the foreign client that are due, and tells when
// the next one is.
func (s *simulation) callForeign(end time.Time) time.Time {
	for !s.next.After(s.now) {
		if !s.next.IsZero() {
			s.bucket.take(s.now)
		}
		s.next = s.now.Add(time.Duration(s.rng.ExpFloat64() / s.foreign * float64(time.Second)))
	}
	if s.next.Before(end) {
		return s.next
	}
	return end
}

// run lets d pass.
func (s *simulation) run(d time.Duration) tally {
	got := tally{make([]int, len(s.pacers)), make([]int, len(s.pacers)), d.Seconds()}
	for end := s.now.Add(d); s.now.Before(end); {
		next := end
		if s.foreign > 0 {
			next = s.callForeign(end)
		}
		for i := range s.pacers {
			if at, waits := s.send(i); waits && at.Before(next) {
				next = at
			}
		}
		if len(s.pending) > 0 && s.pending[0].at.Before(next) {
			next = s.pending[0].at
		}
		s.now = next
		for len(s.pending) > 0 && !s.pending[0].at.After(s.now) {
			s.answer(heap.Pop(&s.pending).(reply), got)
		}
	}
	return got
}

// send makes the calls of a client that its pacer lets it make, and tells when
// the next may be sent, if one waits.
func (s *simulation) send(i int) (at time.Time, waits bool) {
	for s.inflight[i] < s.callers && (s.quota == nil || s.inflight[i] < s.quota[i]) {
		if wait := s.pacers[i].delay(s.clock(i)); wait > 0 {
			return s.now.Add(wait), true
		}
		got := s.pacers[i].take(s.clock(i))
		ok := s.rng.Float64() >= s.chance && s.bucket.take(s.now)
		heap.Push(&s.pending, reply{s.now.Add(s.latency/2 + time.Duration(s.rng.Int64N(int64(s.latency)))), i, got, !ok})
		s.inflight[i]++
	}
	return time.Time{}, false
}

func (s *simulation) answer(r reply, got tally) {
	s.inflight[r.client]--
	if r.refused {
		got.refused[r.client]++
		r.grant.refuse(s.clock(r.client))
		return
	}
	got.passed[r.client]++
	if s.quota != nil {
		s.quota[r.client]--
	}
	r.grant.pass(s.clock(r.client))
}

// finish runs until so many calls have passed, an hour at most.
func (s *simulation) finish(calls int) (got tally) {
	passed, refused := 0, 0
	for passed < calls && got.seconds < 3600 {
		second := s.run(time.Second)
		passed, refused = passed+sum(second.passed), refused+sum(second.refused)
		got.seconds++
	}
	return tally{[]int{passed}, []int{refused}, got.seconds}
}

// besideForeign has a client that never backs off, and then the others pass 100
// calls together, started cold. It returns how long these took, shortest first, as
// a multiple of what a share of the bucket in proportion to the calls takes.
func besideForeign(t *testing.T, foreign float64, seeds uint64, mostRefused int, start func(seed uint64) *simulation) []float64 {
	t.Helper()
	const calls = 100
	var took []float64
	for seed := range seeds {
		s := start(seed)
		callers := s.callers
		s.foreign, s.callers = foreign, 0
		s.run(2*time.Minute + time.Duration(s.rng.Int64N(int64(listenEvery))))
		s.callers, s.quota = callers, slices.Repeat([]int{calls / len(s.pacers)}, len(s.pacers))
		got := s.finish(calls)
		rate := s.bucket.rate
		took = append(took, got.seconds/(calls/(rate*rate/(rate+foreign))))
		check.AtMost(t, sum(got.refused), mostRefused, "%d clients beside %v calls a second: refused calls for %d that passed", len(s.pacers), foreign, sum(got.passed))
	}
	slices.Sort(took)
	return took
}
