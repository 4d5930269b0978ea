package eni

import (
	"testing"
	"time"
)

// Delayed calls lengthen the interval, up to a limit, and others shorten it again, down to the configured one.
func TestStretch(t *testing.T) {
	var s stretch
	for _, c := range []struct {
		took  time.Duration
		times int
		want  time.Duration
	}{
		{time.Second, 100, 5 * time.Minute},
		{3 * time.Second, 1, 10 * time.Minute},
		{3 * time.Second, 10, time.Hour},
		{time.Second, 35, 30 * time.Minute},
		{time.Second, 1000, 5 * time.Minute},
	} {
		for range c.times {
			s.took(c.took)
		}
		if got := s.of(5 * time.Minute); got.Round(time.Minute) != c.want {
			t.Errorf("interval after %d calls of %v = %v, want %v", c.times, c.took, got, c.want)
		}
	}
}
