package planner

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing" // only for testing/synctest
	"testing/synctest"
	"time"
)

// A simulation runs in a bubble of testing/synctest, so that unchanged production code, with its goroutines, channels
// and deadlines of contexts, sees virtual time. The package is made for tests, but a zero testing.T is all it needs,
// and no other package knows when every goroutine is blocked.
//
// Go's scheduler is not reproducible, so the engine lets one goroutine run at a time: an event, such as the end of a
// wait on the simulation's clock, wakes one goroutine, and the next event follows once all are blocked again.
// Goroutines that the same event woke stop at clock.Turn, and continue one after another in the order of their names.

// engine is virtual time.
type engine struct {
	outside context.Context // ends the simulation early

	mu    sync.Mutex // guards all below
	queue events
	turns turns
	seq   uint64
	steps int
	most  int // of steps
}

// maxSteps bounds a simulation: the largest permitted scenario takes a tenth of it.
const maxSteps = 200_000_000

// errTooLong ends a simulation with too many events.
var errTooLong = errors.New("the simulation has too many events: simulate a shorter time, fewer nodes or fewer pods")

// inBubble runs f with an engine in virtual time, which starts at midnight UTC on 1 January 2000. All goroutines
// that f started must have ended when f returns. A panic of f becomes an error.
func inBubble(ctx context.Context, f func(*engine) error) (err error) {
	defer func() {
		if r := recover(); r != nil && err == nil {
			err = fmt.Errorf("simulation failed: %v", r)
		}
	}()
	synctest.Test(new(testing.T), func(*testing.T) {
		defer func() {
			if r := recover(); r != nil {
				err = fmt.Errorf("simulation failed: %v", r)
			}
		}()
		err = f(&engine{outside: ctx, most: maxSteps})
	})
	return err
}

// run processes events up to and including the time until. It returns early once done, which may be nil, returns
// true, and with an error once the outside context ends.
func (e *engine) run(until time.Time, done func() bool) error {
	for {
		synctest.Wait()
		if done != nil && done() {
			return nil
		}
		e.mu.Lock()
		if e.turns.Len() > 0 {
			t := heap.Pop(&e.turns).(turn)
			e.mu.Unlock()
			close(t.ready)
			continue
		}
		var next event
		if e.queue.Len() > 0 {
			next = e.queue[0]
		}
		if next.fire == nil || next.at.After(until) {
			e.mu.Unlock()
			time.Sleep(time.Until(until)) //nolint:forbidigo // virtual time
			return nil
		}
		wait := time.Until(next.at)
		if wait <= 0 {
			heap.Pop(&e.queue)
			e.steps++
		}
		steps := e.steps
		e.mu.Unlock()
		if wait > 0 {
			time.Sleep(wait) //nolint:forbidigo // virtual time, in which deadlines of contexts may pass
			continue
		}
		if steps%1024 == 0 && e.outside.Err() != nil {
			return context.Cause(e.outside)
		}
		if steps > e.most {
			return errTooLong
		}
		next.fire()
	}
}

// quiet reports whether there are no more events.
func (e *engine) quiet() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.queue.Len()+e.turns.Len() == 0
}

// after calls f once d has passed, on the goroutine of run.
func (e *engine) after(owner string, d time.Duration, f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seq++
	heap.Push(&e.queue, event{time.Now().Add(max(0, d)), owner, e.seq, f})
}

// clock is the virtual clock of an owner, such as a node. One event may wake goroutines of several owners, which then
// create timers at the same time: their events are ordered by the owners' names.
type clock struct {
	*engine
	owner string
}

// Now implements clock.Clock.
func (c clock) Now() time.Time { return time.Now() }

// Boot implements clock.Clock.
func (c clock) Boot() time.Duration { return time.Since(time.Time{}) }

// After implements clock.Clock.
func (c clock) After(d time.Duration) <-chan time.Time {
	ch := make(chan time.Time, 1)
	c.after(c.owner, d, func() { ch <- time.Now() })
	return ch
}

// Turn waits until the goroutine's turn among those that one event woke: see clock.Turn.
func (c clock) Turn(name string, number uint64) {
	t := turn{c.owner, name, number, 0, make(chan struct{})}
	c.mu.Lock()
	c.seq++
	t.seq = c.seq
	heap.Push(&c.turns, t)
	c.mu.Unlock()
	<-t.ready
}

// event is something that happens at a time. Events of the same time happen in the order of their owners' names, and
// those of an owner in the order of seq.
type event struct {
	at    time.Time
	owner string
	seq   uint64
	fire  func()
}

type events []event

func (q events) Len() int { return len(q) }
func (q events) Less(i, j int) bool {
	return cmp.Or(q[i].at.Compare(q[j].at), cmp.Compare(q[i].owner, q[j].owner), cmp.Compare(q[i].seq, q[j].seq)) < 0
}
func (q events) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *events) Push(x any)   { *q = append(*q, x.(event)) }
func (q *events) Pop() any     { return pop((*[]event)(q)) }

// turn is a goroutine that waits for its turn.
type turn struct {
	owner, name string
	number, seq uint64
	ready       chan struct{}
}

type turns []turn

func (q turns) Len() int { return len(q) }
func (q turns) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(q[i].owner, q[j].owner), cmp.Compare(q[i].name, q[j].name), cmp.Compare(q[i].number, q[j].number), cmp.Compare(q[i].seq, q[j].seq)) < 0
}
func (q turns) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *turns) Push(x any)   { *q = append(*q, x.(turn)) }
func (q *turns) Pop() any     { return pop((*[]turn)(q)) }

func pop[T any](q *[]T) T {
	last := len(*q) - 1
	x := (*q)[last]
	var zero T
	(*q)[last] = zero
	*q = (*q)[:last]
	return x
}
