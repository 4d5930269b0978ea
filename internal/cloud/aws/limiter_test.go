package aws

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/clock"
)

// TestLimiterOrder: calls go in the order in which they came, as fast as the
// ceiling says, and one that was throttled goes before those that came later.
func TestLimiterOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(clock.Real{}, Limit{Rate: 1, Burst: 1})
		p, first, waited, err := l.acquire(t.Context(), 0)
		if err != nil || waited != 0 {
			t.Fatalf("the first call waited %v: %v", waited, err)
		}
		l.report(p, false)
		start := time.Now()
		type turn struct {
			call int
			at   time.Duration
		}
		turns := make(chan turn, 10)
		join := func(call int, ticket uint64) {
			go func() {
				if _, _, _, err := l.acquire(t.Context(), ticket); err != nil {
					t.Error(err)
				}
				turns <- turn{call, time.Since(start)}
			}()
			synctest.Wait()
		}
		for i := 2; i <= 4; i++ {
			join(i, 0)
		}
		join(1, first)
		// The one that stood first when call 1 came back keeps its turn.
		for i, want := range []int{2, 1, 3, 4} {
			got := <-turns
			if at := time.Duration(i+1) * time.Second; got.call != want || (got.at-at).Abs() > time.Millisecond {
				t.Errorf("turn %d: call %d after %v, want call %d after %v", i, got.call, got.at, want, at)
			}
		}
	})
}

// TestLimiterCancel: a call that gives up, first in the queue or not, costs
// the others nothing.
func TestLimiterCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(clock.Real{}, Limit{Rate: 1, Burst: 1})
		if _, _, _, err := l.acquire(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error, 3)
		leave := func() { _, _, _, err := l.acquire(ctx, 0); gone <- err }
		done := make(chan time.Duration, 2)
		stay := func() {
			if _, _, _, err := l.acquire(t.Context(), 0); err != nil {
				t.Error(err)
			}
			done <- time.Since(start)
		}
		for _, f := range []func(){leave, stay, leave, leave, stay} {
			go f()
			synctest.Wait()
		}
		time.Sleep(500 * time.Millisecond) //nolint:forbidigo // bubble time
		cancel()
		for range 3 {
			if err := <-gone; !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		}
		for i := range 2 {
			if got, want := <-done, time.Duration(i+1)*time.Second; (got - want).Abs() > time.Millisecond {
				t.Errorf("turn %d came after %v, want %v", i, got, want)
			}
		}
		if l.queue.Len() != 0 {
			t.Errorf("%d waiters left behind", l.queue.Len())
		}
	})
}

// TestLimiterLearns runs many callers through a limiter against a bucket of 5
// calls a second that nobody told it about.
func TestLimiterLearns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(clock.Real{}, Limit{})
		b := &bucket{rate: 5, size: 50, tokens: 50, at: time.Now()}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		outcome := make(chan bool, 64)
		var callers sync.WaitGroup
		defer callers.Wait()
		for range 32 {
			callers.Go(func() {
				var ticket uint64
				for {
					p, tk, _, err := l.acquire(ctx, ticket)
					if err != nil {
						return
					}
					l.mu.Lock()
					ok := b.take(time.Now())
					l.mu.Unlock()
					time.Sleep(50 * time.Millisecond) //nolint:forbidigo // bubble time
					l.report(p, !ok)
					if ticket = 0; !ok {
						ticket = tk
					}
					select {
					case outcome <- ok:
					case <-ctx.Done():
					}
				}
			})
		}
		start, passed, refused := time.Now(), 0, 0
		for {
			var ok bool
			select {
			case ok = <-outcome:
			case <-ctx.Done():
				got := float64(passed) / 240
				if got < 4 || got > 6 || refused*20 > passed {
					t.Errorf("after a minute %.2f/s passed and %d calls were refused, want 5/s ± 20 %% and at most 5 %%", got, refused)
				}
				return
			}
			switch {
			case time.Since(start) < time.Minute:
			case ok:
				passed++
			default:
				refused++
			}
		}
	})
}
