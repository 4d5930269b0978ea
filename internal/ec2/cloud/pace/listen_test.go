package pace

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestPeersForeign: beside a client that never backs off, peers that start cold
// get done what they have to at about the share of the bucket that is in
// proportion to the calls, however many they are.
func TestPeersForeign(t *testing.T) {
	const seeds = 21
	for _, tt := range []struct{ foreign, median, worst float64 }{{4, 1, 1.5}, {5.5, 1.5, 2.5}, {8, 2.5, 4}} {
		for _, peers := range []int{1, 2, 4} {
			took := besideForeign(t, tt.foreign, seeds, 300, func(seed uint64) *simulation { return simulatePeers(bucket{rate: 5, size: 50}, peers, seed) })
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
					s := simulatePeers(bucket{rate: rate, size: 5 * max(10, rate)}, peers, seed)
					s.chance = chance
					s.run(time.Minute)
					got = append(got, s.run(10*time.Minute).rate()/(rate*(1-chance)))
				}
				t.Logf("%d peers, %v/s granted, %.0f %% refused: %.2f of the rest", peers, rate, 100*chance, got)
				if slices.Min(got) < 0.8 {
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
				s := simulatePeers(bucket{rate: tt.rate, size: 5 * max(10, tt.rate)}, tt.peers, seed)
				s.skew = tt.skew
				s.foreign = 1.6 * tt.rate
				beside := s.run(3 * time.Minute).wasted()
				s.foreign = 0
				at := s.run(2 * time.Minute).wasted()
				got := s.run(10 * time.Minute)
				t.Logf("%.0f %% refused beside it, %.0f %% in two minutes after, then %.1f %% and %.2f/s", 100*beside, 100*at, 100*got.wasted(), got.rate())
				if got.wasted() > 0.1 || got.rate() < 0.9*tt.rate {
					t.Errorf("%.1f %% refused, want at most 10 %%; %.2f/s passed of %v/s", 100*got.wasted(), got.rate(), tt.rate)
				}
			}
		})
	}
}

// TestPeersOutage: while everything is refused, attempts become rare among peers too.
func TestPeersOutage(t *testing.T) {
	for _, foreign := range []float64{0, 8} {
		s := simulatePeers(bucket{rate: 5, size: 50}, 4, 1)
		s.foreign = foreign
		s.run(2 * time.Minute)
		s.bucket.rate, s.bucket.tokens = 0, 0
		s.run(2 * time.Minute)
		if n := sum(s.run(5 * time.Minute).refused); n > 4*12 {
			t.Errorf("%d calls in five minutes in which every call was refused, want at most 12 of each of 4 peers", n)
		}
	}
}
