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

var errNot = errors.New("not yet")

// attempts are when Until calls its function, since its start.
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
		want []error // errors.Is each of them; none: nil
		at   []time.Duration
	}{
		"succeeds at once": {func(int, func(error)) error { return nil }, nil, []time.Duration{0}},
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
		"its context ends": {func(n int, end func(error)) error {
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
					t.Errorf("got %v", err)
				}
				for _, want := range tt.want {
					if !errors.Is(err, want) {
						t.Errorf("got %v, want %v", err, want)
					}
				}
				a.want(t, tt.at...)
			})
		})
	}
}

// An ended context makes no attempt.
func TestUntilWithoutTime(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	end()
	if err := Until(ctx, clock.Real{}, Policy{}, func(context.Context) error { t.Error("called"); return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestPolicySpreads(t *testing.T) {
	for range 100 {
		if d := (Policy{First: time.Second, Most: time.Minute, Spread: true}).delay(1); d < time.Second || d > 3*time.Second {
			t.Fatalf("waits %v, want 2s or half more or less", d)
		}
	}
	if d := (Policy{}).delay(0); d != First {
		t.Errorf("without bounds %v, want %v", d, First)
	}
}
