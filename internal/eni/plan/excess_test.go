package plan

import "testing"

func TestExcessMustPersist(t *testing.T) {
	var e Lasting
	at := func(seconds, n int) int {
		return e.Allow(n, unix(seconds), 60*second)
	}
	for _, step := range []struct{ seconds, excess, want int }{
		{0, 5, 0}, {30, 2, 0}, {59, 9, 0}, // the least within the time is what persisted
		{60, 9, 2}, {61, 7, 0}, {119, 7, 0}, {120, 7, 7}, {121, 0, 0}, {122, 4, 0}, {182, 4, 4}, {183, 4, 4},
	} {
		if got := at(step.seconds, step.excess); got != step.want {
			t.Errorf("at %d s with %d in excess: %d may go, want %d", step.seconds, step.excess, got, step.want)
		}
	}
}
