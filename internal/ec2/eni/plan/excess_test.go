package plan

import (
	"testing"
	"time"
)

// Each part of an excess goes when it has lasted for the delay, whenever the
// others came: pods that end one after the other do not hold each other up.
func TestExcessLastsByParts(t *testing.T) {
	const delay = time.Minute
	type moment struct{ second, n, want int }
	for name, moments := range map[string][]moment{
		"at once":         {{0, 20, 0}, {59, 20, 0}, {60, 20, 20}, {61, 0, 0}},
		"in steps":        {{0, 1, 0}, {1, 9, 0}, {2, 20, 0}, {60, 20, 1}, {61, 20, 9}, {62, 20, 20}},
		"a dip":           {{0, 20, 0}, {30, 5, 0}, {31, 20, 0}, {60, 20, 5}, {90, 20, 5}, {91, 20, 20}},
		"a dip to a step": {{0, 5, 0}, {10, 20, 0}, {20, 5, 0}, {60, 5, 5}},
		"between steps":   {{0, 5, 0}, {10, 20, 0}, {20, 9, 0}, {60, 9, 5}, {70, 9, 9}},
		"none meanwhile":  {{0, 20, 0}, {30, 0, 0}, {31, 20, 0}, {90, 20, 0}, {91, 20, 20}},
		"the least within the time": {
			{0, 5, 0}, {30, 2, 0}, {59, 9, 0}, {60, 9, 2}, {61, 7, 0}, {118, 7, 0}, {119, 7, 7}, {120, 7, 7}, {121, 0, 0}, {122, 4, 0}, {182, 4, 4}, {183, 4, 4},
		},
		"partly given": {{0, 20, 0}, {60, 20, 20}, {61, 11, 11}, {62, 12, 11}},
	} {
		t.Run(name, func(t *testing.T) {
			var e Lasting
			begin := time.Unix(1e9, 0)
			for _, m := range moments {
				now := begin.Add(time.Duration(m.second) * time.Second)
				if got := e.Allow(m.n, m.n, now, delay); got != m.want {
					t.Errorf("after %d s, with %d in excess: %d have lasted, want %d", m.second, m.n, got, m.want)
				}
				if due := e.Due(now, delay); !due.IsZero() && !due.After(now) {
					t.Errorf("after %d s: due at %v", m.second, due)
				}
			}
		})
	}
}

// Pods that start and end again and again wear down no excess that is there all the
// time, also where it cannot go at once, such as a prefix of which one address is used.
func TestExcessLastsBesideChurn(t *testing.T) {
	for _, every := range []int{1, 2, 4, 8} {
		var e Lasting
		for s := range 1200 {
			n := 18 - (s/every)%2
			if got := e.Allow(n, 48, unix(s), time.Minute); s > 70 && got < 17 {
				t.Fatalf("a change every %d s, after %d s: %d of at least 17 have lasted", every, s, got)
			}
		}
	}
}
