package pace

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// newPeers is a world of clients that are peers, also if it is just one.
func newPeers(b bucket, n int, seed uint64) *world {
	w := newWorld(&b, n, 50, 100*time.Millisecond)
	w.rng = rand.New(rand.NewPCG(seed, 2))
	for i := range w.pacers {
		w.pacers[i] = newPacer(w.now, Limit{}, true)
	}
	return w
}

// wasted is the share of calls that were refused.
func wasted(passed, refused []int) float64 {
	return float64(sum(refused)) / float64(sum(passed)+sum(refused))
}

// TestPeersForeign: beside a client that never backs off, peers that start cold
// get done what they have to at about the share of the bucket that is in
// proportion to the calls, however many they are.
func TestPeersForeign(t *testing.T) {
	const rate, calls, seeds = 5, 100, 21
	for _, tt := range []struct{ foreign, median, worst float64 }{{4, 1, 1.5}, {5.5, 1.5, 2.5}, {8, 2.5, 4}} {
		for _, peers := range []int{1, 2, 4} {
			share := calls / (rate * rate / (rate + tt.foreign)) // seconds
			var took []float64
			for seed := range uint64(seeds) {
				w := newPeers(bucket{rate: rate, size: 50}, peers, seed)
				w.foreign, w.callers = tt.foreign, 0
				w.run(2*time.Minute + time.Duration(w.rng.Int64N(int64(listenEvery))))
				w.callers, w.quota = 50, slices.Repeat([]int{calls / peers}, peers)
				done, lost, n := 0, 0, 0
				for ; done < calls && n < 3600; n++ {
					passed, refused := w.run(time.Second)
					done, lost = done+sum(passed), lost+sum(refused)
				}
				took = append(took, float64(n)/share)
				if lost > 3*calls {
					t.Errorf("%d peers beside %v calls a second: %d calls were refused for %d that passed", peers, tt.foreign, lost, done)
				}
			}
			slices.Sort(took)
			t.Logf("%d peers beside %v calls a second: %.2f times what a proportional share takes", peers, tt.foreign, took)
			if took[seeds/2] > tt.median || took[seeds-1] > tt.worst {
				t.Errorf("%d peers beside %v calls a second: %.2f times what a proportional share takes, want a median of %v and at most %v",
					peers, tt.foreign, took, tt.median, tt.worst)
			}
		}
	}
}

// TestPeersChance: refusals that have nothing to do with the rate do not wear
// that of peers down.
func TestPeersChance(t *testing.T) {
	const seeds = 3
	for _, rate := range []float64{5, 20} {
		for _, peers := range []int{1, 4} {
			for _, chance := range []float64{0.01, 0.02, 0.05, 0.1} {
				var got []float64
				for seed := range uint64(seeds) {
					w := newPeers(bucket{rate: rate, size: 5 * max(10, rate)}, peers, seed)
					w.chance = chance
					w.run(time.Minute)
					passed, _ := w.run(10 * time.Minute)
					got = append(got, float64(sum(passed))/600/(rate*(1-chance)))
				}
				slices.Sort(got)
				t.Logf("%d peers, %v/s granted, %.0f %% refused: %.2f of the rest", peers, rate, 100*chance, got)
				if got[0] < 0.8 {
					t.Errorf("%d peers, %v/s granted, %.0f %% refused: %.2f of what the others make of the rate, want at least 0.8", peers, rate, 100*chance, got)
				}
			}
		}
	}
}

// TestPeersAlone: once a client that never backed off is gone, peers do not take
// each other for one. Nor do they when their clocks differ a little.
func TestPeersAlone(t *testing.T) {
	for _, tt := range []struct {
		peers int
		rate  float64
		skew  time.Duration
	}{{1, 5, 0}, {2, 5, 0}, {4, 5, 0}, {4, 20, 0}, {4, 5, 100 * time.Millisecond}, {4, 20, 100 * time.Millisecond}} {
		t.Run(fmt.Sprintf("%d peers, %v/s, skew %v", tt.peers, tt.rate, tt.skew), func(t *testing.T) {
			for seed := range uint64(5) {
				w := newPeers(bucket{rate: tt.rate, size: 5 * max(10, tt.rate)}, tt.peers, seed)
				w.skew = tt.skew
				w.foreign = 1.6 * tt.rate
				beside := wasted(w.run(3 * time.Minute))
				w.foreign = 0
				at := wasted(w.run(2 * time.Minute))
				passed, refused := w.run(10 * time.Minute)
				t.Logf("%.0f %% refused beside it, %.0f %% in two minutes after, then %.1f %% and %.2f/s", 100*beside, 100*at, 100*wasted(passed, refused), float64(sum(passed))/600)
				if lost := wasted(passed, refused); lost > 0.1 || float64(sum(passed))/600 < 0.9*tt.rate {
					t.Errorf("%.1f %% refused, want at most 10 %%; %.2f/s passed of %v/s", 100*lost, float64(sum(passed))/600, tt.rate)
				}
			}
		})
	}
}

// TestPeersOutage: while everything is refused, attempts become rare among peers too.
func TestPeersOutage(t *testing.T) {
	for _, foreign := range []float64{0, 8} {
		w := newPeers(bucket{rate: 5, size: 50}, 4, 1)
		w.foreign = foreign
		w.run(2 * time.Minute)
		w.bucket.rate, w.bucket.tokens = 0, 0
		w.run(2 * time.Minute)
		if _, refused := w.run(5 * time.Minute); sum(refused) > 4*12 {
			t.Errorf("%d calls in five minutes in which every call was refused, want at most 12 of each of 4 peers", sum(refused))
		}
	}
}
