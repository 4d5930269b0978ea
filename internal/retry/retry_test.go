package retry

import (
	"testing"
	"time"
)

func TestDelay(t *testing.T) {
	for failures, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, 5 * time.Second} {
		if got := Delay(time.Second, 5*time.Second, failures); got != want {
			t.Errorf("after %d failures: %v, want %v", failures, got, want)
		}
	}
	if got := Delay(time.Second, time.Minute, 1000); got != time.Minute {
		t.Errorf("after very many: %v", got)
	}
}

func TestBackoffGrowsAndIsSpread(t *testing.T) {
	const first, most = 250 * time.Millisecond, 10 * time.Second
	now := time.Unix(1000, 0)
	for range 100 {
		var b Backoff
		want := first
		for range 70 {
			b.Fail(now, first, most)
			if d := b.Until.Sub(now); d < want/2 || d > want*3/2 {
				t.Fatalf("waits %v, want %v or half more or less", d, want)
			}
			want = min(2*want, most)
		}
	}
}

func TestEarliest(t *testing.T) {
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	if got := Earliest(at(10), at(30), time.Time{}, at(9), at(20), at(10)); !got.Equal(at(20)) {
		t.Errorf("got %v, want second 20", got)
	}
	if got := Earliest(at(10), at(9)); !got.IsZero() {
		t.Errorf("nothing is after now, and got %v", got)
	}
}

func TestSignal(t *testing.T) {
	s := NewSignal()
	s.Set()
	s.Set()
	<-s
	select {
	case <-s:
		t.Error("two signals are two")
	default:
	}
}
