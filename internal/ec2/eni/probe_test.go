package eni

import "testing"

func TestProbesArePaced(t *testing.T) {
	var p podProbe
	for _, step := range []struct {
		seconds, waiting int
		want             bool
	}{
		{0, 0, false},
		{1, 1, true}, // a pod came
		{2, 1, false},
		{3, 2, false}, // another, too soon
		{10, 2, false},
		{11, 2, true}, // for that one
		{30, 2, false},
		{31, 1, false}, // one went
		{32, 2, true},  // and tries again
		{33, 3, false},
		{34, 0, false}, // nobody waits any more
		{50, 0, false},
	} {
		if got := p.next(step.waiting, unix(step.seconds)); got != step.want {
			t.Errorf("at %d s with %d waiting: %v, want %v", step.seconds, step.waiting, got, step.want)
		}
	}
}
