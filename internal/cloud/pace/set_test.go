package pace

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/cloud"
)

// limited is a Set in which the calls of one action have a ceiling.
func limited(c Call, l Limit) *Set {
	return NewSet(Options{Ceilings: map[string]Limit{c.Action: l}})
}

// waiting joins calls to a Set one after the other and records their turns.
type waiting struct {
	t     *testing.T
	set   *Set
	start time.Time
	turns chan turn
}

type turn struct {
	name string
	at   time.Duration
}

func (w *waiting) join(name string, c Call, p cloud.Priority, ticket uint64) {
	go func() {
		got, _, _, err := w.set.acquire(cloud.WithPriority(w.t.Context(), p), c, ticket)
		if err != nil {
			w.t.Error(err)
			return
		}
		w.set.report(got, passed)
		w.turns <- turn{name, time.Since(w.start)}
	}()
	synctest.Wait()
}

func (w *waiting) expect(want ...turn) {
	w.t.Helper()
	for i, want := range want {
		if got := <-w.turns; got.name != want.name || (got.at-want.at).Abs() > time.Millisecond {
			w.t.Errorf("turn %d: %s after %v, want %s after %v", i, got.name, got.at, want.name, want.at)
		}
	}
}

func newWaiting(t *testing.T, s *Set) *waiting {
	return &waiting{t: t, set: s, start: time.Now(), turns: make(chan turn, 100)}
}

// TestOrder: calls go by priority, then in the order in which they came, as
// fast as the ceiling says, and one that was throttled goes before equals that
// came later.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := limited(Assign, Limit{Rate: 1, Burst: 1})
		p, first, waited, err := s.acquire(t.Context(), Assign, 0)
		if err != nil || waited != 0 {
			t.Fatalf("the first call waited %v: %v", waited, err)
		}
		s.report(p, passed)
		w := newWaiting(t, s)
		w.join("b", Assign, 0, 0)
		w.join("c", Assign, 0, 0)
		w.join("more urgent", Assign, 5, 0)
		w.join("less urgent", Assign, -1, 0)
		w.join("a", Assign, 0, first)
		w.join("as urgent", Assign, 5, 0)
		w.expect(turn{"more urgent", time.Second}, turn{"as urgent", 2 * time.Second}, turn{"a", 3 * time.Second},
			turn{"b", 4 * time.Second}, turn{"c", 5 * time.Second}, turn{"less urgent", 6 * time.Second})
	})
}

// TestCancel: a call that gives up, first in the queue or not, costs the
// others nothing.
func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := limited(Assign, Limit{Rate: 1, Burst: 1})
		if _, _, _, err := s.acquire(t.Context(), Assign, 0); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error, 3)
		leave := func() { _, _, _, err := s.acquire(ctx, Assign, 0); gone <- err }
		done := make(chan time.Duration, 2)
		stay := func() {
			if _, _, _, err := s.acquire(t.Context(), Assign, 0); err != nil {
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
		if n := s.actions[Assign.Action].queue.len(); n != 0 {
			t.Errorf("%d waiters left behind", n)
		}
	})
}

// TestLearns runs many callers through a Set against a bucket of 5 calls a
// second that nobody told it about.
func TestLearns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSet(Options{})
		b := &bucket{rate: 5, size: 50, tokens: 50, at: time.Now()}
		var mu sync.Mutex
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		outcome := make(chan bool, 64)
		var callers sync.WaitGroup
		defer callers.Wait()
		for range 32 {
			callers.Go(func() {
				var ticket uint64
				for {
					p, tk, _, err := s.acquire(ctx, Assign, ticket)
					if err != nil {
						return
					}
					mu.Lock()
					ok := b.take(time.Now())
					mu.Unlock()
					time.Sleep(50 * time.Millisecond) //nolint:forbidigo // bubble time
					if ticket = 0; ok {
						s.report(p, passed)
					} else {
						s.report(p, refused)
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
