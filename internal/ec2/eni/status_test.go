package eni

import (
	"testing"
	"time"
)

// A detachment that hangs is not asked after every two seconds for hours.
func TestDetachPoll(t *testing.T) {
	for _, c := range []struct{ since, want time.Duration }{{0, 2 * second}, {8 * second, 2 * second}, {40 * second, 10 * second}, {time.Hour, time.Minute}} {
		k := known{replied: unix(0)}
		if got := k.detachPoll(unix(0).Add(c.since)); got != c.want {
			t.Errorf("after %v: %v, want %v", c.since, got, c.want)
		}
	}
	if got := (&known{}).detachPoll(unix(0)); got != 10*second {
		t.Errorf("begun by someone else: %v", got)
	}
}

const second = time.Second

func unix(seconds int) time.Time { return time.Unix(1_000_000+int64(seconds), 0) }
