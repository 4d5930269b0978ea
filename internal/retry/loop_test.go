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

// attempts are when an Until or Keep calls its function, since its start.
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

// Work is done at once, when it is woken, when it asked to be, and after failures with
// longer and longer waits; a success begins them anew.
func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		wake := NewSignal()
		a := attempts{began: time.Now()}
		time.AfterFunc(20*time.Second, wake.Set)
		time.AfterFunc(30*time.Second, wake.Set)
		Keep(ctx, clock.Real{}, Policy{First: 2 * time.Second, Most: time.Minute}, wake, func(context.Context) (time.Time, error) {
			switch a.add() {
			case 1, 2: // fails, and again 2 s after
				return time.Time{}, errNot
			case 3: // 4 s after that, and asks for one more
				return time.Now().Add(time.Second), nil
			case 5: // woken
				return time.Now().Add(time.Second), errNot // what is sooner counts
			case 7:
				end()
			}
			return time.Time{}, nil
		})
		a.want(t, 0, 2*time.Second, 6*time.Second, 7*time.Second, 20*time.Second, 21*time.Second, 30*time.Second)
	})
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
