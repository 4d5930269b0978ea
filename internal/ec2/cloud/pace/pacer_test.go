package pace

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/berthnet/berth/test/harness/check"
)

// Within a minute the pacer uses the rate that EC2 grants, ±20 %, with at most 5 % of its calls refused.
func TestPacerSettles(t *testing.T) {
	for _, rate := range []float64{1, 2, 5, 20, 50} {
		for _, size := range []float64{10, 50, 100} {
			if size < 2*rate {
				continue // EC2's buckets hold several seconds of their rate
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

// The pacer follows changes of the granted rate while the queue is full.
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

// Four clients that share a bucket, like the daemons of four nodes, together use all of it, and none starves.
func TestPacerShares(t *testing.T) {
	s := simulatePeers(bucket{rate: 20, size: 100}, 4, 1)
	s.latency = 50 * time.Millisecond
	s.run(2 * time.Minute)
	got := s.run(10 * time.Minute)
	got.expect(t, "together", 20)
	for i, n := range got.passed {
		if n < sum(got.passed)/16 {
			t.Errorf("client %d made %d of %d calls, want at least a quarter of an equal share", i, n, sum(got.passed))
		}
	}
}

// A long job takes hardly longer than EC2's documented buckets require.
func TestPacerWastesLittle(t *testing.T) {
	for _, b := range []bucket{{rate: 5, size: 100}, {rate: 5, size: 50}, {rate: 20, size: 100}} {
		for _, calls := range []int{500, 2000} {
			took, least := simulate(b).finish(calls).seconds, (float64(calls)-b.size)/b.rate
			t.Logf("%d calls at %v/s with %v at once: %v s, at least %.0f s", calls, b.rate, b.size, took, least)
			check.AtMost(t, took, 1.1*least+1, "seconds for %d calls at %v/s", calls, b.rate)
		}
	}
}

// While every call is refused, attempts become rare; afterwards the rate recovers.
func TestPacerOutage(t *testing.T) {
	s := simulate(bucket{rate: 5, size: 50})
	s.callers, s.latency = 1, 10*time.Millisecond
	s.run(2 * time.Minute)
	s.bucket.rate, s.bucket.tokens = 0, 0
	s.run(time.Minute)
	check.AtMost(t, sum(s.run(5*time.Minute).refused), 12, "calls in five minutes of outage")
	s.bucket.rate = 5
	s.run(4 * time.Minute)
	s.run(4*time.Minute).expect(t, "after the outage", 5)
}

// After an idle period a burst is sent immediately.
func TestPacerBurst(t *testing.T) {
	s := simulate(bucket{rate: 5, size: 50})
	s.callers, s.latency = 200, 10*time.Millisecond
	s.run(2 * time.Minute)
	s.callers = 0
	s.run(5 * time.Minute)
	s.callers = 200
	got := s.run(time.Second)
	if n := sum(got.passed); n < 20 {
		t.Errorf("%d calls passed in the second after the idle period, want at least 20 from EC2's bucket of 50", n)
	}
	check.AtMost(t, sum(got.refused), 60, "refused calls")
	// The burst's refusals do not change the settled rate.
	s.run(time.Minute)
	s.run(2*time.Minute).expect(t, "after the burst", 5)
}

// A refusal after an idle period does not change the rate, however small the burst has become.
func TestPacerIdle(t *testing.T) {
	s := simulate(bucket{rate: 5, size: 50})
	s.callers, s.latency = 200, 10*time.Millisecond
	s.run(2 * time.Minute)
	p := s.pacers[0]
	for _, burst := range []float64{1, 8, 50} {
		p.burst = burst
		before, now := p.rate, s.now.Add(10*time.Minute)
		if d := p.delay(now); d != 0 {
			t.Fatalf("call after an idle period has to wait %v", d)
		}
		p.take(now).refuse(now)
		if p.rate < 0.8*before {
			t.Errorf("burst of %v: rate fell from %.2f to %.2f", burst, before, p.rate)
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

// Next to a client that never backs off, a pacer gets about its proportional share of the bucket for any random
// seed, and wastes a bounded number of calls.
func TestPacerBesideUnyieldingClient(t *testing.T) {
	const seeds = 9
	for _, foreign := range []float64{4, 5.5, 8} {
		took := besideForeign(t, foreign, seeds, 200, func(seed uint64) *simulation { return newSimulation(bucket{rate: 5, size: 50}, 1, false, seed) })
		t.Logf("beside a client that makes %v calls a second: took %.2f times as long as with a proportional share", foreign, took)
		if took[seeds/2] > 1.5 || took[seeds-1] > 2.5 {
			t.Errorf("beside a client that makes %v calls a second: took %.2f times as long as with a proportional share, want at most 1.5 in the median and 2.5 in any run", foreign, took)
		}
	}
}

// Random refusals do not wear down the rate.
func TestPacerToleratesRandomRefusals(t *testing.T) {
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

// A single refusal while calls pass does not slow the pacer down.
func TestPacerOneRefusal(t *testing.T) {
	s := simulate(bucket{rate: 1000, size: 1000})
	s.callers = 200
	s.pacers[0].take(s.now).refuse(s.now)
	if n := sum(s.run(time.Second).passed); n < 50 {
		t.Errorf("%d calls passed in the second after one refusal, want at least 50", n)
	}
}

// Next to a client that never backs off, peers that start cold complete their work at about the proportional
// share of the bucket, regardless of their number.
func TestPeersBesideUnyieldingClient(t *testing.T) {
	const seeds = 21
	for _, tt := range []struct{ foreign, median, worst float64 }{{4, 1, 1.5}, {5.5, 1.5, 2.5}, {8, 2.5, 4}} {
		for _, peers := range []int{1, 2, 4} {
			took := besideForeign(t, tt.foreign, seeds, 300, func(seed uint64) *simulation { return simulatePeers(bucket{rate: 5, size: 50}, peers, seed) })
			t.Logf("%d peers beside a client that makes %v calls a second: took %.2f times as long as with a proportional share", peers, tt.foreign, took)
			if took[seeds/2] > tt.median || took[seeds-1] > tt.worst {
				t.Errorf("%d peers beside a client that makes %v calls a second: took %.2f times as long as with a proportional share, want at most %v in the median and %v in any run",
					peers, tt.foreign, took, tt.median, tt.worst)
			}
		}
	}
}

// Random refusals do not wear down the rate of peers.
func TestPeersTolerateRandomRefusals(t *testing.T) {
	const seeds = 3
	for _, rate := range []float64{5, 20} {
		for _, peers := range []int{1, 4} {
			for _, chance := range []float64{0.01, 0.02, 0.05, 0.1} {
				var got []float64
				for seed := range uint64(seeds) {
					s := simulatePeers(bucket{rate: rate, size: 5 * max(10, rate)}, peers, seed)
					s.chance = chance
					s.run(time.Minute)
					got = append(got, s.run(10*time.Minute).rate()/(rate*(1-chance)))
				}
				t.Logf("%d peers, %v/s granted, %.0f %% refused: %.2f of the possible rate", peers, rate, 100*chance, got)
				if slices.Min(got) < 0.8 {
					t.Errorf("%d peers, %v/s granted, %.0f %% refused: %.2f of the possible rate, want at least 0.8", peers, rate, 100*chance, got)
				}
			}
		}
	}
}

// Once a client that never backed off has stopped, peers do not mistake each other for such a client, not even if
// their clocks differ slightly.
func TestPeersAlone(t *testing.T) {
	for _, tt := range []struct {
		peers int
		rate  float64
		skew  time.Duration
	}{{1, 5, 0}, {2, 5, 0}, {4, 5, 0}, {4, 20, 0}, {4, 5, 100 * time.Millisecond}, {4, 20, 100 * time.Millisecond}} {
		t.Run(fmt.Sprintf("%d peers, %v/s, skew %v", tt.peers, tt.rate, tt.skew), func(t *testing.T) {
			for seed := range uint64(5) {
				s := simulatePeers(bucket{rate: tt.rate, size: 5 * max(10, tt.rate)}, tt.peers, seed)
				s.skew = tt.skew
				s.foreign = 1.6 * tt.rate
				beside := s.run(3 * time.Minute).wasted()
				s.foreign = 0
				at := s.run(2 * time.Minute).wasted()
				got := s.run(10 * time.Minute)
				t.Logf("%.0f %% refused beside the other client, %.0f %% in the two minutes after it stopped, then %.1f %% and %.2f/s passed", 100*beside, 100*at, 100*got.wasted(), got.rate())
				if got.wasted() > 0.1 || got.rate() < 0.9*tt.rate {
					t.Errorf("%.1f %% refused, want at most 10 %%; %.2f/s passed of %v/s", 100*got.wasted(), got.rate(), tt.rate)
				}
			}
		})
	}
}

// While every call is refused, attempts by peers become rare, too.
func TestPeersOutage(t *testing.T) {
	for _, foreign := range []float64{0, 8} {
		s := simulatePeers(bucket{rate: 5, size: 50}, 4, 1)
		s.foreign = foreign
		s.run(2 * time.Minute)
		s.bucket.rate, s.bucket.tokens = 0, 0
		s.run(2 * time.Minute)
		check.AtMost(t, sum(s.run(5*time.Minute).refused), 4*12, "calls in five minutes of outage")
	}
}
