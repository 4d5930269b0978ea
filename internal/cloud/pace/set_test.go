package pace

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
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

// TestHeld: who wants to know of a call that waits for long is told once, and
// not of one that does not.
func TestHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := limited(Assign, Limit{Rate: 0.05, Burst: 1})
		start := time.Now()
		var told []time.Duration
		call := func() {
			ctx := cloud.WithHeld(t.Context(), time.Now().Add(15*time.Second), func(op string) {
				if op != Assign.Action {
					t.Errorf("told of %s", op)
				}
				told = append(told, time.Since(start))
			})
			if err := s.Do(ctx, Assign, func(context.Context) Reply { return Reply{} }); err != nil {
				t.Error(err)
			}
		}
		call()
		call()
		time.Sleep(10 * time.Second) //nolint:forbidigo // in a bubble, where time passes once nothing else can happen
		call()                       // has to wait for ten seconds
		if len(told) != 1 || told[0] != 15*time.Second {
			t.Errorf("told after %v, want once, after 15s", told)
		}
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

// TestFinishesFirst: nothing is begun while something begun waits, and nothing
// else is held back by that.
func TestFinishesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := limited(AttachENI, Limit{Rate: 1, Burst: 1})
		w := newWaiting(t, s)
		w.join("attach a", AttachENI, cloud.Begun, 0)
		w.expect(turn{"attach a", 0})
		w.join("attach b", AttachENI, cloud.Begun, 0)
		w.join("create c", CreateENI, 100, 0)
		w.join("create d", CreateENI, 200, 0)
		w.join("assign e", Assign, 0, 0)
		w.join("list", DescribeENIs, 0, 0)
		w.join("a's second ENI", CreateENI, cloud.Begun, 0)
		w.expect(turn{"assign e", 0}, turn{"list", 0}, turn{"a's second ENI", 0})
		got := map[string]bool{}
		for range 3 {
			r := <-w.turns
			got[r.name] = true
			if (r.at - time.Second).Abs() > time.Millisecond {
				t.Errorf("%s after %v, want a second", r.name, r.at)
			}
		}
		if !got["attach b"] || !got["create c"] || !got["create d"] {
			t.Errorf("got %v", got)
		}
	})
}

// TestGivenUpBegun: something begun that is given up holds nothing back.
func TestGivenUpBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := limited(AttachENI, Limit{Rate: 0.01, Burst: 1})
		w := newWaiting(t, s)
		w.join("attach a", AttachENI, cloud.Begun, 0)
		w.expect(turn{"attach a", 0})
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		go func() { _, _, _, _ = s.acquire(cloud.WithPriority(ctx, cloud.Begun), AttachENI, 0) }()
		synctest.Wait()
		w.join("create b", CreateENI, 1, 0)
		w.expect(turn{"create b", 3 * time.Second})
	})
}

// TestPatience: a call of low priority has its turn although more urgent ones
// never end.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiting(t, limited(DescribeENIs, Limit{Rate: 1, Burst: 1}))
		w.join("page", DescribeENIs, 0, 0)
		w.expect(turn{"page", 0})
		w.join("page", DescribeENIs, 0, 0)
		for range 60 {
			w.join("progress", DescribeENIs, 5, 0)
		}
		at := time.Duration(0)
		for range 61 {
			if got := <-w.turns; got.name == "page" {
				at = got.at
			}
		}
		if at < patience || at > patience+fairTurn*time.Second {
			t.Errorf("the page had its turn after %v, want %v to %v", at, patience, patience+fairTurn*time.Second)
		}
	})
}

// TestQueueOrder compares a queue with a sorted list through random changes.
func TestQueueOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		var q queue
		q.init()
		var all []*waiter
		for ticket := range uint64(100) {
			if len(all) > 0 && rng.IntN(3) == 0 {
				i := rng.IntN(len(all))
				q.remove(all[i])
				all = slices.Delete(all, i, i+1)
			}
			w := &waiter{ticket: ticket, priority: cloud.Priority(rng.IntN(5))}
			q.push(w)
			all = append(all, w)
			oldest := all[0]
			first := slices.MinFunc(all, func(a, b *waiter) int {
				return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.ticket, b.ticket))
			})
			if q.first() != first || q.oldest() != oldest || q.len() != len(all) {
				t.Fatalf("first %+v, oldest %+v of %d; want %+v, %+v of %d", q.first(), q.oldest(), q.len(), first, oldest, len(all))
			}
		}
	}
}

// TestAllCallsEnd: callers of all kinds that come, give up and are refused at
// random leave a Set as it was.
func TestAllCallsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := limited(AttachENI, Limit{Rate: 20, Burst: 2})
		var callers sync.WaitGroup
		for seed := range uint64(300) {
			callers.Go(func() {
				rng := rand.New(rand.NewPCG(seed, 0))
				for range 10 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.IntN(20_000))*time.Millisecond)
					call := []Call{CreateENI, AttachENI, Assign, DescribeENIs}[rng.IntN(4)]
					p := []cloud.Priority{0, 5, cloud.Begun}[rng.IntN(3)]
					_ = s.Do(cloud.WithPriority(ctx, p), call, func(ctx context.Context) Reply {
						select {
						case <-time.After(time.Duration(rng.IntN(200)) * time.Millisecond):
						case <-ctx.Done():
							return Reply{Err: &cloud.Error{Class: cloud.Transient, Err: ctx.Err()}}
						}
						class := []cloud.Class{cloud.Unknown, cloud.Unknown, cloud.Throttled, cloud.Gone, cloud.Transient}[rng.IntN(5)]
						if class == cloud.Unknown {
							return Reply{}
						}
						return Reply{Err: &cloud.Error{Class: class, Code: "Code"}}
					})
					cancel()
				}
			})
		}
		callers.Wait()
		for _, a := range s.order {
			if a.queue.len() != 0 || a.pacer.inflight > 0 {
				t.Errorf("%s: %d wait, %d in flight", a.name, a.queue.len(), a.pacer.inflight)
			}
		}
		if s.begun != 0 || s.alarm != nil {
			t.Errorf("%d begun ones wait, alarm %v", s.begun, s.alarm)
		}
	})
}

// BenchmarkWaiters is the cost of a call while so many wait.
func BenchmarkWaiters(b *testing.B) {
	for _, n := range []int{10, 1000, 10_000, 100_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			s := limited(Assign, Limit{Rate: 0.001, Burst: 1})
			s.report(s.join(Assign, 0, false, 0).permit, passed)
			for i := range n {
				s.join(Assign, cloud.Priority(i%16), false, 0)
			}
			b.ResetTimer()
			for i := range b.N {
				s.leave(s.join(Assign, cloud.Priority(i%16), false, 0))
			}
		})
	}
}
