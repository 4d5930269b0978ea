package pace

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/test/harness/check"
)

// limited is a Set in which the calls of one action have a ceiling.
func limited(c Call, l Limit) *Set {
	return NewSet(Options{Ceilings: map[string]Limit{c.Action: l}})
}

// waiting queues calls in a Set one after the other and records their turns.
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
	w.joinUntil(w.t.Context(), name, c, p, ticket)
}

// joinUntil queues a call that gives up when ctx ends, which is recorded with the reason.
func (w *waiting) joinUntil(ctx context.Context, name string, c Call, p cloud.Priority, ticket uint64) {
	go func() {
		got, _, _, err := w.set.acquire(cloud.WithPriority(ctx, p), c, ticket)
		if err == nil {
			w.set.report(got, passed)
		} else {
			name += ": " + err.Error()
		}
		w.turns <- turn{name, time.Since(w.start)}
	}()
	synctest.Wait()
}

func (w *waiting) expect(want ...turn) {
	w.t.Helper()
	for i, want := range want {
		if got := <-w.turns; got.name != want.name || (got.at-want.at).Abs() > time.Millisecond {
			w.t.Errorf("turn %d = %s after %v, want %s after %v", i, got.name, got.at, want.name, want.at)
		}
	}
}

func newWaiting(t *testing.T, s *Set) *waiting {
	return &waiting{t: t, set: s, start: time.Now(), turns: make(chan turn, 100)}
}

// Calls are sent by priority, then in order of arrival, at the rate of the ceiling. A throttled call goes before
// equal ones that arrived later.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := limited(Assign, Limit{Rate: 1, Burst: 1})
		p, first, waited, err := s.acquire(t.Context(), Assign, 0)
		if err != nil || waited != 0 {
			t.Fatalf("first call waited %v, error %v, want none", waited, err)
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

// A call that waits for long is reported once; one that does not is not reported.
func TestLongWaitIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := limited(Assign, Limit{Rate: 0.05, Burst: 1})
		start := time.Now()
		var reported []time.Duration
		call := func() {
			ctx := cloud.WithHeld(t.Context(), time.Now().Add(15*time.Second), func(op string) {
				check.Equal(t, op, Assign.Action, "reported action")
				reported = append(reported, time.Since(start))
			})
			check.NoError(t, s.Do(ctx, Assign, func(context.Context) Reply { return Reply{} }))
		}
		call()
		call()
		time.Sleep(10 * time.Second) //nolint:forbidigo // in a bubble, where time passes once nothing else can happen
		call()                       // has to wait for ten seconds
		if len(reported) != 1 || reported[0] != 15*time.Second {
			t.Errorf("reported after %v, want once after 15s", reported)
		}
	})
}

// A call that gives up, whether first in the queue or not, costs the others nothing.
func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := limited(Assign, Limit{Rate: 1, Burst: 1})
		w := newWaiting(t, s)
		w.join("first", Assign, 0, 0)
		w.expect(turn{"first", 0})
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		for _, stays := range []bool{false, true, false, false, true} {
			if stays {
				w.join("stays", Assign, 0, 0)
			} else {
				w.joinUntil(ctx, "leaves", Assign, 0, 0)
			}
		}
		gaveUp := turn{"leaves: context deadline exceeded", 500 * time.Millisecond}
		w.expect(gaveUp, gaveUp, gaveUp, turn{"stays", time.Second}, turn{"stays", 2 * time.Second})
		check.Equal(t, s.actions[Assign.Action].queue.len(), 0, "waiters left in the queue")
	})
}

// No work on a node starts while calls that complete earlier work are waiting. Other calls are not held back.
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
			check.AtMost(t, (r.at - time.Second).Abs(), time.Millisecond, "%s after %v", r.name, r.at)
		}
		if !got["attach b"] || !got["create c"] || !got["create d"] {
			t.Errorf("calls served = %v, want all others, too", got)
		}
	})
}

// A completing call that gives up no longer holds back new work.
func TestCanceledCallHoldsNothingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := limited(AttachENI, Limit{Rate: 0.01, Burst: 1})
		w := newWaiting(t, s)
		w.join("attach a", AttachENI, cloud.Begun, 0)
		w.expect(turn{"attach a", 0})
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		w.joinUntil(ctx, "attach b", AttachENI, cloud.Begun, 0)
		w.join("create b", CreateENI, 1, 0)
		w.expect(turn{"attach b: context deadline exceeded", 3 * time.Second}, turn{"create b", 3 * time.Second})
	})
}

// A call of low priority gets its turn although more urgent calls never stop arriving.
func TestLowPriorityCallsAreNotStarved(t *testing.T) {
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
			t.Errorf("low-priority call had its turn after %v, want %v to %v", at, patience, patience+fairTurn*time.Second)
		}
	})
}

// TestQueueOrder compares a queue with a sorted list under random changes.
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
				t.Fatalf("first = %+v, oldest = %+v of %d, want %+v and %+v of %d", q.first(), q.oldest(), q.len(), first, oldest, len(all))
			}
		}
	}
}

// After random calls of all kinds have succeeded, failed or given up, the Set has no waiters and no calls in flight.
func TestSetIsEmptyAfterRandomCalls(t *testing.T) {
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
				t.Errorf("%s: %d calls waiting, %d in flight, want none", a.name, a.queue.len(), a.pacer.inflight)
			}
		}
		if s.begun != 0 || s.alarm != nil {
			t.Errorf("%d waiters of priority Begun, alarm %v, want none", s.begun, s.alarm)
		}
	})
}

// A call that is recalled while it waits is not sent and leaves its turn to others; a call in flight completes.
func TestRecalledCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSet(Options{Ceilings: map[string]Limit{Assign.Action: {Rate: 0.1, Burst: 1}}})
		recalled := make(chan struct{})
		ctx := cloud.WithRecall(t.Context(), recalled)
		begin, sent := time.Now(), 0
		send := func(took time.Duration) func(context.Context) Reply {
			return func(ctx context.Context) Reply {
				sent++
				select {
				case <-time.After(took):
					return Reply{}
				case <-ctx.Done():
					return Reply{Err: &cloud.Error{Class: cloud.Transient, Err: ctx.Err()}}
				}
			}
		}
		time.AfterFunc(2*time.Second, func() { close(recalled) })
		first := make(chan error, 1)
		go func() { first <- s.Do(ctx, Assign, send(3*time.Second)) }()
		synctest.Wait()
		err := s.Do(ctx, Assign, send(0))
		if !errors.Is(err, cloud.ErrRecalled) || cloud.ClassOf(err) != cloud.Throttled || time.Since(begin) != 2*time.Second {
			t.Errorf("recalled call ended after %v with error %v, want ErrRecalled of class throttled after 2s", time.Since(begin), err)
		}
		if err := <-first; err != nil {
			t.Errorf("call recalled while in flight failed: %v", err)
		}
		if err := s.Do(t.Context(), Assign, send(0)); err != nil || time.Since(begin) != 10*time.Second {
			t.Errorf("next call ended after %v with error %v, want the turn of the recalled one", time.Since(begin), err)
		}
		check.Equal(t, sent, 2, "calls sent")
	})
}

// After a refusal, a spare call leaves the rate to other processes, whereas an urgent one does not. It is sent as
// soon as it is needed. A process without peers never yields.
func TestSpareCallsYield(t *testing.T) {
	after := func(peers bool, call func(ctx context.Context, needed chan struct{}) context.Context) (waited time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			s := NewSet(Options{Peers: peers})
			s.report(s.join(Assign, 0, false, 0).permit, refused)
			begin, needed := time.Now(), make(chan struct{})
			p, _, _, err := s.acquire(call(t.Context(), needed), Assign, 0)
			check.OK(t, err)
			s.report(p, passed)
			waited = time.Since(begin)
		})
		return waited
	}
	urgent := func(ctx context.Context, _ chan struct{}) context.Context { return ctx }
	spare := func(ctx context.Context, needed chan struct{}) context.Context {
		return cloud.WithSpare(ctx, func() <-chan struct{} { return needed })
	}
	soon := func(ctx context.Context, needed chan struct{}) context.Context {
		time.AfterFunc(time.Second, func() { close(needed) })
		return cloud.WithSpare(ctx, func() <-chan struct{} { return needed })
	}
	for _, tt := range []struct {
		name  string
		peers bool
		call  func(context.Context, chan struct{}) context.Context
		want  time.Duration
	}{
		{"urgent", true, urgent, firstHold},
		{"spare", true, spare, spareFactor * spareLeast},
		{"needed after a second", true, soon, time.Second},
		{"spare, no peers", false, spare, 0},
	} {
		check.Equal(t, after(tt.peers, tt.call), tt.want, "%s: time waited", tt.name)
	}
}
