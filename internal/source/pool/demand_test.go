package pool

import (
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/test/harness/check"
)

func TestDemand(t *testing.T) {
	for _, tc := range []struct {
		name   string
		have   supply
		target int
		blocks int
	}{
		{"nothing here, nobody waits", supply{size: 32}, 0, 0},
		{"a pool that is kept warm", supply{size: 32, warm: true}, 8, 1},
		{"enough is free", supply{size: 32, warm: true, free: 8}, 8, 0},
		{"a block before the last one is full", supply{size: 32, warm: true, free: 7}, 8, 1},
		{"two addresses: a quarter is none", supply{size: 2, warm: true, free: 0}, 0, 0},
		{"single addresses are asked for one by one", supply{size: 1, warm: true, waiting: 3}, 0, 3},
		{"a hundred pods at once", supply{size: 32, warm: true, waiting: 100}, 8, 4},
		{"a hundred pods at once, single addresses", supply{size: 1, warm: true, waiting: 100}, 0, 8},
		{"those who wait get what is on its way", supply{size: 4, warm: true, waiting: 3, free: 4}, 1, 0},
		{"a huge block", supply{size: 1 << 30, warm: true, free: 1 << 29}, 1 << 28, 0},
	} {
		check.Equal(t, tc.have.target(25), tc.target, "%s: target", tc.name)
		check.Equal(t, tc.have.blocks(25), tc.blocks, "%s: blocks", tc.name)
	}
}

func TestBlocksToReturn(t *testing.T) {
	const delay = time.Minute
	long, longer, now := t0.Add(-2*delay), t0.Add(-3*delay), t0
	for _, tc := range []struct {
		name  string
		have  supply
		empty []idle
		want  string
		soon  time.Time
	}{
		{"the last block of a pool that is kept warm", supply{size: 32, warm: true, free: 32}, []idle{{"a", 32, long}}, "", time.Time{}},
		{"the last block of one that nobody uses", supply{size: 32, free: 32}, []idle{{"a", 32, long}}, "a", time.Time{}},
		{"the longest empty", supply{size: 32, warm: true, free: 64}, []idle{{"a", 32, long}, {"b", 32, longer}}, "b", time.Time{}},
		{"all but what keeps it warm", supply{size: 4, warm: true, free: 12}, []idle{{"a", 4, long}, {"b", 4, long}, {"c", 4, longer}}, "c a", time.Time{}},
		{"not at once", supply{size: 32, free: 32}, []idle{{"a", 32, now.Add(-time.Second)}}, "", now.Add(delay - time.Second)},
		{"the rest is too full", supply{size: 32, warm: true, free: 32 + 7}, []idle{{"a", 32, long}}, "", time.Time{}},
		{"pods wait", supply{size: 1, warm: true, free: 1, waiting: 1}, []idle{{"a", 1, long}}, "", time.Time{}},
	} {
		names, soon := toReturn(tc.have, 25, tc.empty, delay, now)
		if got := strings.Join(names, " "); got != tc.want || !soon.Equal(tc.soon) {
			t.Errorf("%s: %q, next %v; want %q, %v", tc.name, got, soon, tc.want, tc.soon)
		}
	}
}
