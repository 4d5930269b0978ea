package pace

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
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

// world is clients with endless queues that share one bucket.
type world struct {
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
	greedy   time.Time // when the foreign client calls next
	passed   []int
	refused  []int
	quota    []int // calls that each client still has to pass; nil: no end
}

func newWorld(b *bucket, clients, callers int, latency time.Duration) *world {
	w := &world{now: time.Unix(1e9, 0), bucket: b, callers: callers, latency: latency, rng: rand.New(rand.NewPCG(1, 2))}
	b.at, b.tokens = w.now, b.size
	for range clients {
		w.pacers = append(w.pacers, newPacer(w.now, Limit{}, clients > 1))
	}
	w.inflight, w.passed, w.refused = make([]int, clients), make([]int, clients), make([]int, clients)
	return w
}

// clock is a client's.
func (w *world) clock(client int) time.Time { return w.now.Add(time.Duration(client) * w.skew) }

// greed makes the calls of the foreign client that are due, and tells when the
// next one is.
func (w *world) greed(end time.Time) time.Time {
	for !w.greedy.After(w.now) {
		if !w.greedy.IsZero() {
			w.bucket.take(w.now)
		}
		w.greedy = w.now.Add(time.Duration(w.rng.ExpFloat64() / w.foreign * float64(time.Second)))
	}
	if w.greedy.Before(end) {
		return w.greedy
	}
	return end
}

// run lets d pass and returns what passed and was refused in it, per client.
func (w *world) run(d time.Duration) (passed, refused []int) {
	clear(w.passed)
	clear(w.refused)
	end := w.now.Add(d)
	for w.now.Before(end) {
		next := end
		if w.foreign > 0 {
			next = w.greed(end)
		}
		for i, p := range w.pacers {
			for w.inflight[i] < w.callers && (w.quota == nil || w.inflight[i] < w.quota[i]) {
				wait := p.delay(w.clock(i))
				if wait > 0 {
					if t := w.now.Add(wait); t.Before(next) {
						next = t
					}
					break
				}
				got := p.take(w.clock(i))
				ok := w.rng.Float64() >= w.chance && w.bucket.take(w.now)
				heap.Push(&w.pending, reply{w.now.Add(w.latency/2 + time.Duration(w.rng.Int64N(int64(w.latency)))), i, got, !ok})
				w.inflight[i]++
			}
		}
		if len(w.pending) > 0 && w.pending[0].at.Before(next) {
			next = w.pending[0].at
		}
		w.now = next
		for len(w.pending) > 0 && !w.pending[0].at.After(w.now) {
			r := heap.Pop(&w.pending).(reply)
			w.inflight[r.client]--
			if r.refused {
				w.refused[r.client]++
				r.grant.refuse(w.clock(r.client))
			} else {
				w.passed[r.client]++
				if w.quota != nil {
					w.quota[r.client]--
				}
				r.grant.pass(w.clock(r.client))
			}
		}
	}
	return w.passed, w.refused
}

func sum(n []int) (s int) {
	for _, v := range n {
		s += v
	}
	return s
}

// TestPacerSettles holds the promise of the pacer: within a minute it uses
// what EC2 grants, ±20 %, with fewer than 5 % of its calls refused.
func TestPacerSettles(t *testing.T) {
	for _, rate := range []float64{1, 2, 5, 20, 50} {
		for _, size := range []float64{10, 50, 100} {
			if size < 2*rate {
				continue // EC2's buckets hold seconds of their rate
			}
			for _, latency := range []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, 800 * time.Millisecond} {
				t.Run(fmt.Sprintf("rate=%v,bucket=%v,latency=%v", rate, size, latency), func(t *testing.T) {
					w := newWorld(&bucket{rate: rate, size: size}, 1, 200, latency)
					_, early := w.run(time.Minute)
					e := sum(early)
					passed, refused := w.run(4 * time.Minute)
					got, lost := float64(sum(passed))/240, float64(sum(refused))/float64(sum(passed)+sum(refused))
					t.Logf("%.2f/s of %v/s passed, %.1f %% refused; %d refused in the first minute", got, rate, 100*lost, e)
					if math.Abs(got-rate) > 0.2*rate {
						t.Errorf("settled at %.2f/s, want %v/s ± 20 %%", got, rate)
					}
					if lost > 0.05 {
						t.Errorf("%.1f %% of calls refused, want at most 5 %%", 100*lost)
					}
				})
			}
		}
	}
}

// TestPacerFollows changes what EC2 grants while the queue is full.
func TestPacerFollows(t *testing.T) {
	w := newWorld(&bucket{rate: 5, size: 50}, 1, 200, 50*time.Millisecond)
	w.run(2 * time.Minute)
	for _, step := range []struct {
		rate  float64
		grace time.Duration
	}{{20, 3 * time.Minute}, {2, time.Minute}, {10, 4 * time.Minute}} {
		w.bucket.rate = step.rate
		w.run(step.grace)
		passed, refused := w.run(4 * time.Minute)
		got, lost := float64(sum(passed))/240, float64(sum(refused))/float64(sum(passed)+sum(refused))
		t.Logf("%.2f/s of %v/s passed, %.1f %% refused", got, step.rate, 100*lost)
		if math.Abs(got-step.rate) > 0.2*step.rate || lost > 0.05 {
			t.Errorf("after the grant became %v/s: %.2f/s passed, %.1f %% refused", step.rate, got, 100*lost)
		}
	}
}

// TestPacerShares lets four clients draw from one bucket, as the daemons of
// four nodes do: together they use it, and none starves.
func TestPacerShares(t *testing.T) {
	w := newWorld(&bucket{rate: 20, size: 100}, 4, 50, 50*time.Millisecond)
	w.run(2 * time.Minute)
	passed, refused := w.run(10 * time.Minute)
	all, lost := float64(sum(passed))/600, float64(sum(refused))/float64(sum(passed)+sum(refused))
	t.Logf("%v passed, %v refused: %.2f/s", passed, refused, all)
	if math.Abs(all-20) > 4 || lost > 0.05 {
		t.Errorf("%.2f/s passed, want 20 ± 20 %%; %.1f %% refused, want at most 5 %%", all, 100*lost)
	}
	for i, n := range passed {
		if n < sum(passed)/16 {
			t.Errorf("client %d got %d of %d calls", i, n, sum(passed))
		}
	}
}

// TestPacerWastesLittle: a long job takes hardly longer than EC2's documented
// buckets alone make it.
func TestPacerWastesLittle(t *testing.T) {
	for _, b := range []bucket{{rate: 5, size: 100}, {rate: 5, size: 50}, {rate: 20, size: 100}} {
		for _, calls := range []int{500, 2000} {
			w := newWorld(&b, 1, 50, 100*time.Millisecond)
			done, took := 0, time.Duration(0)
			for done < calls {
				passed, _ := w.run(time.Second)
				done += sum(passed)
				took += time.Second
			}
			least := (float64(calls) - b.size) / b.rate
			t.Logf("%d calls at %v/s with %v at once: %v, at least %.0f s", calls, b.rate, b.size, took, least)
			if took.Seconds() > 1.1*least+1 {
				t.Errorf("%d calls at %v/s took %v, want at most 1.1 times %.0f s", calls, b.rate, took, least)
			}
		}
	}
}

// TestPacerOutage: while everything is refused, attempts become rare, and
// afterwards the rate comes back.
func TestPacerOutage(t *testing.T) {
	w := newWorld(&bucket{rate: 5, size: 50}, 1, 1, 10*time.Millisecond)
	w.run(2 * time.Minute)
	w.bucket.rate, w.bucket.tokens = 0, 0
	w.run(time.Minute)
	if _, refused := w.run(5 * time.Minute); sum(refused) > 12 {
		t.Errorf("%d calls in five minutes in which every call was refused, want at most 12", sum(refused))
	}
	w.bucket.rate = 5
	w.run(4 * time.Minute)
	if passed, _ := w.run(4 * time.Minute); math.Abs(float64(sum(passed))/240-5) > 1 {
		t.Errorf("after the outage %.2f/s passed, want 5 ± 20 %%", float64(sum(passed))/240)
	}
}

// TestPacerBurst: after a quiet time a burst goes out at once again.
func TestPacerBurst(t *testing.T) {
	w := newWorld(&bucket{rate: 5, size: 50}, 1, 200, 10*time.Millisecond)
	w.run(2 * time.Minute)
	w.callers = 0
	w.run(5 * time.Minute)
	w.callers = 200
	passed, refused := w.run(time.Second)
	if sum(passed) < 20 {
		t.Errorf("%d calls passed in the second after a quiet time, want at least 20 of EC2's bucket of 50", sum(passed))
	}
	if sum(refused) > 60 {
		t.Errorf("%d calls refused", sum(refused))
	}
	// What the burst taught does not upset the rate.
	w.run(time.Minute)
	passed, _ = w.run(2 * time.Minute)
	if got := float64(sum(passed)) / 120; math.Abs(got-5) > 1 {
		t.Errorf("settled at %.2f/s after the burst, want 5 ± 20 %%", got)
	}
}

// TestPacerQuiet: a refusal after a quiet time says nothing about the rate,
// however small the burst has become.
func TestPacerQuiet(t *testing.T) {
	w := newWorld(&bucket{rate: 5, size: 50}, 1, 200, 10*time.Millisecond)
	w.run(2 * time.Minute)
	p := w.pacers[0]
	for _, burst := range []float64{1, 8, 50} {
		p.burst = burst
		before, now := p.rate, w.now.Add(10*time.Minute)
		if d := p.delay(now); d != 0 {
			t.Fatalf("a call after a quiet time has to wait %v", d)
		}
		p.take(now).refuse(now)
		if p.rate < 0.8*before {
			t.Errorf("with a burst of %v the rate went from %.2f to %.2f", burst, before, p.rate)
		}
		w.now = now
		w.run(2 * time.Minute)
	}
}

func TestPacerCeiling(t *testing.T) {
	w := newWorld(&bucket{rate: 1000, size: 1000}, 1, 200, 10*time.Millisecond)
	w.pacers[0] = newPacer(w.now, Limit{Rate: 4, Burst: 10}, false)
	passed, _ := w.run(time.Minute)
	if n := sum(passed); n < 245 || n > 251 {
		t.Errorf("%d calls in a minute with a ceiling of 4/s and 10 at once, want 250", n)
	}
}

// TestPacerForeign: beside a client that never backs off, a pacer gets about
// the share of the bucket that is in proportion to the calls, however the dice
// fall, and wastes no more than it is said to.
func TestPacerForeign(t *testing.T) {
	const rate, calls, seeds = 5, 100, 9
	for _, foreign := range []float64{4, 5.5, 8} {
		share := calls / (rate * rate / (rate + foreign)) // seconds
		var took []float64
		for seed := range uint64(seeds) {
			w := newWorld(&bucket{rate: rate, size: 50}, 1, 50, 100*time.Millisecond)
			w.rng = rand.New(rand.NewPCG(seed, 2))
			w.foreign, w.callers = foreign, 0
			w.run(2 * time.Minute)
			w.callers = 50
			done, lost, n := 0, 0, 0
			for ; done < calls && n < 3600; n++ {
				passed, refused := w.run(time.Second)
				done, lost = done+sum(passed), lost+sum(refused)
			}
			took = append(took, float64(n))
			if lost > 2*calls {
				t.Errorf("beside %v calls a second %d calls were refused for %d that passed", foreign, lost, done)
			}
		}
		slices.Sort(took)
		t.Logf("beside %v calls a second: %v s, a proportional share takes %.0f s", foreign, took, share)
		if took[seeds/2] > 1.5*share || took[seeds-1] > 2.5*share {
			t.Errorf("beside %v calls a second: %v s, want at most 1.5 times %.0f s", foreign, took, share)
		}
	}
}

// TestPacerChance: refusals that have nothing to do with the rate do not wear
// it down.
func TestPacerChance(t *testing.T) {
	for _, rate := range []float64{5, 20, 1000} {
		for _, chance := range []float64{0.01, 0.02, 0.05, 0.1} {
			w := newWorld(&bucket{rate: rate, size: 50}, 1, 50, 100*time.Millisecond)
			w.chance = chance
			w.run(time.Minute)
			passed, _ := w.run(10 * time.Minute)
			got, want := float64(sum(passed))/600, min(100*(1-chance), rate)
			t.Logf("%v/s granted, %.0f %% refused: %.2f/s", rate, 100*chance, got)
			if got < 0.5*want {
				t.Errorf("%v/s granted, %.0f %% refused: %.2f/s, want at least half of %v/s", rate, 100*chance, got, want)
			}
		}
	}
}

// TestPacerOneRefusal: one refusal while calls pass holds up nothing.
func TestPacerOneRefusal(t *testing.T) {
	w := newWorld(&bucket{rate: 1000, size: 1000}, 1, 200, 100*time.Millisecond)
	p := w.pacers[0]
	p.take(w.now).refuse(w.now)
	if passed, _ := w.run(time.Second); sum(passed) < 50 {
		t.Errorf("%d calls passed in the second after one refusal, want as many as without", sum(passed))
	}
}
