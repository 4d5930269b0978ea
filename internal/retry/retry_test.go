package retry

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/clock"
)

func TestDelay(t *testing.T) {
	for failures, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, 5 * time.Second} {
		if got := Delay(time.Second, 5*time.Second, failures); got != want {
			t.Errorf("Delay() after %d failures = %v, want %v", failures, got, want)
		}
	}
	if got := Delay(time.Second, time.Minute, 1000); got != time.Minute {
		t.Errorf("Delay() after 1000 failures = %v, want 1m", got)
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
				t.Fatalf("wait = %v, want %v plus or minus half", d, want)
			}
			want = min(2*want, most)
		}
	}
}

func TestEarliest(t *testing.T) {
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	if got := Earliest(at(10), at(30), time.Time{}, at(9), at(20), at(10)); !got.Equal(at(20)) {
		t.Errorf("Earliest() = %v, want second 20", got)
	}
	if got := Earliest(at(10), at(9)); !got.IsZero() {
		t.Errorf("Earliest() without a time after now = %v, want zero", got)
	}
}

func TestSignal(t *testing.T) {
	s := NewSignal()
	s.Set()
	s.Set()
	<-s
	select {
	case <-s:
		t.Error("the receiver was woken twice")
	default:
	}
}

var errNot = errors.New("not yet")

// attempts records when Until calls its function, since the start.
type attempts struct {
	began time.Time
	at    []time.Duration
}

func (a *attempts) add() int {
	a.at = append(a.at, time.Since(a.began))
	return len(a.at)
}

func (a *attempts) want(t *testing.T, want ...time.Duration) {
	t.Helper()
	if !slices.Equal(a.at, want) {
		t.Errorf("attempts at %v, want %v", a.at, want)
	}
}

func TestUntil(t *testing.T) {
	policy := Policy{First: time.Second, Most: 3 * time.Second}
	ended := errors.New("shutting down")
	for name, tt := range map[string]struct {
		do   func(attempt int, end func(error)) error
		want []error // errors.Is is true for each; empty: no error
		at   []time.Duration
	}{
		"succeeds immediately": {func(int, func(error)) error { return nil }, nil, []time.Duration{0}},
		"succeeds after failures": {func(n int, _ func(error)) error {
			if n < 5 {
				return errNot
			}
			return nil
		}, nil, []time.Duration{0, time.Second, 3 * time.Second, 6 * time.Second, 9 * time.Second}},
		"stops": {func(n int, _ func(error)) error {
			if n < 2 {
				return errNot
			}
			return Stop(errNot)
		}, []error{errNot}, []time.Duration{0, time.Second}},
		"context ends": {func(n int, end func(error)) error {
			if n == 2 {
				end(ended)
			}
			return errNot
		}, []error{errNot, ended}, []time.Duration{0, time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, end := context.WithCancelCause(t.Context())
				a := attempts{began: time.Now()}
				err := Until(ctx, clock.Real{}, policy, func(context.Context) error { return tt.do(a.add(), end) })
				if len(tt.want) == 0 && err != nil {
					t.Errorf("Until() = %v, want no error", err)
				}
				for _, want := range tt.want {
					if !errors.Is(err, want) {
						t.Errorf("Until() = %v, want %v", err, want)
					}
				}
				a.want(t, tt.at...)
			})
		})
	}
}

// With an ended context Until makes no attempt.
func TestUntilWithEndedContext(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	end()
	if err := Until(ctx, clock.Real{}, Policy{}, func(context.Context) error { t.Error("called"); return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("Until() = %v, want context.Canceled", err)
	}
}

func TestPolicySpread(t *testing.T) {
	for range 100 {
		if d := (Policy{First: time.Second, Most: time.Minute, Spread: true}).delay(1); d < time.Second || d > 3*time.Second {
			t.Fatalf("wait = %v, want 2s plus or minus half", d)
		}
	}
	if d := (Policy{}).delay(0); d != First {
		t.Errorf("wait of the zero Policy = %v, want %v", d, First)
	}
}

func TestInFlight(t *testing.T) {
	now := time.Unix(1000, 0)
	f := NewInFlight[string, int]()
	start := func(k string, want bool) {
		t.Helper()
		if w, _ := f.Start(k, now); (w != nil) != want {
			t.Errorf("Start(%s) = %t, want %t", k, w != nil, want)
		}
	}
	all := func(string) bool { return true }
	start("a", true)
	start("a", false)
	start("b", true)
	if n, m := f.Running(nil), f.Running(func(k string) bool { return k == "b" }); n != 2 || m != 1 {
		t.Errorf("Running() = %d, of which b = %d, want 2 and 1", n, m)
	}
	f.End("a").Until = now.Add(time.Second)
	if w, next := f.Start("a", now); w != nil || !next.Equal(now.Add(time.Second)) {
		t.Errorf("Start() during the backoff until %v = %v, want nil", next, w)
	}
	f.Retain(func(k string) bool { return k != "a" })
	start("a", true) // Retain removed its backoff

	// Running work is forgotten when it ends, unless it is wanted again by then.
	f.Of("b").Value = 7
	f.Retain(func(k string) bool { return k != "b" })
	start("b", false)
	f.Retain(all)
	f.End("b")
	if f.Of("b").Value != 7 {
		t.Error("running work that Retain kept the last time was forgotten")
	}
	f.Retain(func(string) bool { return false })
	f.End("a").Until = now.Add(time.Hour)
	start("a", true)
}

// Repeat reports an error once, until another one or a success comes between, and nothing once its context has ended.
func TestRepeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		a, b := errors.New("a"), errors.New("b")
		attempts := []error{a, a, b, nil, b, b, a}
		var failed []error
		began := time.Now()
		Repeat(ctx, clock.Real{}, func(context.Context) (time.Duration, error) {
			err := attempts[0]
			if attempts = attempts[1:]; len(attempts) == 0 {
				cancel()
			}
			return time.Minute, err
		}, func(err error) { failed = append(failed, err) })
		if want := []error{a, b, b}; !slices.Equal(failed, want) || time.Since(began) != 6*time.Minute {
			t.Errorf("Repeat() reported %v within %v, want %v within 6m", failed, time.Since(began), want)
		}
	})
}
