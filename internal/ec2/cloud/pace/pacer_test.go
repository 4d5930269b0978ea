package pace

import (
	"fmt"
	"testing"
	"time"
)

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
					s := simulate(bucket{rate: rate, size: size})
					s.callers, s.latency = 200, latency
					s.run(time.Minute)
					s.run(4*time.Minute).expect(t, "settled", rate)
				})
			}
		}
	}
}

// TestPacerFollows changes what EC2 grants while the queue is full.
func TestPacerFollows(t *testing.T) {
	s := simulate(bucket{rate: 5, size: 50})
	s.callers, s.latency = 200, 50*time.Millisecond
	s.run(2 * time.Minute)
	for _, step := range []struct {
		rate  float64
		grace time.Duration
	}{{20, 3 * time.Minute}, {2, time.Minute}, {10, 4 * time.Minute}} {
		s.bucket.rate = step.rate
		s.run(step.grace)
		s.run(4*time.Minute).expect(t, "after the change", step.rate)
	}
}

// TestPacerShares lets four clients draw from one bucket, as the daemons of
// four nodes do: together they use it, and none starves.
func TestPacerShares(t *testing.T) {
	s := simulatePeers(bucket{rate: 20, size: 100}, 4, 1)
	s.latency = 50 * time.Millisecond
	s.run(2 * time.Minute)
	got := s.run(10 * time.Minute)
	got.expect(t, "together", 20)
	for i, n := range got.passed {
		if n < sum(got.passed)/16 {
			t.Errorf("client %d got %d of %d calls", i, n, sum(got.passed))
		}
	}
}

// TestPacerWastesLittle: a long job takes hardly longer than EC2's documented
// buckets alone make it.
func TestPacerWastesLittle(t *testing.T) {
	for _, b := range []bucket{{rate: 5, size: 100}, {rate: 5, size: 50}, {rate: 20, size: 100}} {
		for _, calls := range []int{500, 2000} {
			took, least := simulate(b).finish(calls).seconds, (float64(calls)-b.size)/b.rate
			t.Logf("%d calls at %v/s with %v at once: %v s, at least %.0f s", calls, b.rate, b.size, took, least)
			if took > 1.1*least+1 {
				t.Errorf("%d calls at %v/s took %v s, want at most 1.1 times %.0f s", calls, b.rate, took, least)
			}
		}
	}
}

// TestPacerOutage: while everything is refused, attempts become rare, and
// afterwards the rate comes back.
func TestPacerOutage(t *testing.T) {
	s := simulate(bucket{rate: 5, size: 50})
	s.callers, s.latency = 1, 10*time.Millisecond
	s.run(2 * time.Minute)
	s.bucket.rate, s.bucket.tokens = 0, 0
	s.run(time.Minute)
	if n := sum(s.run(5 * time.Minute).refused); n > 12 {
		t.Errorf("%d calls in five minutes in which every call was refused, want at most 12", n)
	}
	s.bucket.rate = 5
	s.run(4 * time.Minute)
	s.run(4*time.Minute).expect(t, "after the outage", 5)
}

// TestPacerBurst: after a quiet time a burst goes out at once again.
func TestPacerBurst(t *testing.T) {
	s := simulate(bucket{rate: 5, size: 50})
	s.callers, s.latency = 200, 10*time.Millisecond
	s.run(2 * time.Minute)
	s.callers = 0
	s.run(5 * time.Minute)
	s.callers = 200
	got := s.run(time.Second)
	if n := sum(got.passed); n < 20 {
		t.Errorf("%d calls passed in the second after a quiet time, want at least 20 of EC2's bucket of 50", n)
	}
	if n := sum(got.refused); n > 60 {
		t.Errorf("%d calls refused", n)
	}
	// What the burst taught does not upset the rate.
	s.run(time.Minute)
	s.run(2*time.Minute).expect(t, "after the burst", 5)
}

// TestPacerQuiet: a refusal after a quiet time says nothing about the rate,
// however small the burst has become.
func TestPacerQuiet(t *testing.T) {
	s := simulate(bucket{rate: 5, size: 50})
	s.callers, s.latency = 200, 10*time.Millisecond
	s.run(2 * time.Minute)
	p := s.pacers[0]
	for _, burst := range []float64{1, 8, 50} {
		p.burst = burst
		before, now := p.rate, s.now.Add(10*time.Minute)
		if d := p.delay(now); d != 0 {
			t.Fatalf("a call after a quiet time has to wait %v", d)
		}
		p.take(now).refuse(now)
		if p.rate < 0.8*before {
			t.Errorf("with a burst of %v the rate went from %.2f to %.2f", burst, before, p.rate)
		}
		s.now = now
		s.run(2 * time.Minute)
	}
}

func TestPacerCeiling(t *testing.T) {
	s := simulate(bucket{rate: 1000, size: 1000})
	s.callers, s.latency = 200, 10*time.Millisecond
	s.pacers[0] = newPacer(s.now, Limit{Rate: 4, Burst: 10}, false)
	if n := sum(s.run(time.Minute).passed); n < 245 || n > 251 {
		t.Errorf("%d calls in a minute with a ceiling of 4/s and 10 at once, want 250", n)
	}
}

// TestPacerForeign: beside a client that never backs off, a pacer gets about
// the share of the bucket that is in proportion to the calls, however the dice
// fall, and wastes no more than it is said to.
func TestPacerForeign(t *testing.T) {
	const seeds = 9
	for _, foreign := range []float64{4, 5.5, 8} {
		took := besideForeign(t, foreign, seeds, 200, func(seed uint64) *simulation { return newSimulation(bucket{rate: 5, size: 50}, 1, false, seed) })
		t.Logf("beside %v calls a second: %.2f times what a proportional share takes", foreign, took)
		if took[seeds/2] > 1.5 || took[seeds-1] > 2.5 {
			t.Errorf("beside %v calls a second: %.2f times what a proportional share takes, want a median of 1.5 and at most 2.5", foreign, took)
		}
	}
}

// TestPacerChance: refusals that have nothing to do with the rate do not wear
// it down.
func TestPacerChance(t *testing.T) {
	for _, rate := range []float64{5, 20, 1000} {
		for _, chance := range []float64{0.01, 0.02, 0.05, 0.1} {
			s := simulate(bucket{rate: rate, size: 50})
			s.chance = chance
			s.run(time.Minute)
			got, want := s.run(10*time.Minute).rate(), min(100*(1-chance), rate)
			t.Logf("%v/s granted, %.0f %% refused: %.2f/s", rate, 100*chance, got)
			if got < 0.5*want {
				t.Errorf("%v/s granted, %.0f %% refused: %.2f/s, want at least half of %v/s", rate, 100*chance, got, want)
			}
		}
	}
}

// TestPacerOneRefusal: one refusal while calls pass holds up nothing.
func TestPacerOneRefusal(t *testing.T) {
	s := simulate(bucket{rate: 1000, size: 1000})
	s.callers = 200
	s.pacers[0].take(s.now).refuse(s.now)
	if n := sum(s.run(time.Second).passed); n < 50 {
		t.Errorf("%d calls passed in the second after one refusal, want as many as without", n)
	}
}
