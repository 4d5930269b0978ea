// Package lanes limits how many calls to a provider of VPC ports are in flight. When the provider
// throttles (class Throttled), the limit is halved, and no call starts until the time that the provider
// asked for. Then the limit grows by one for each round of successful calls. Waiting calls that free
// something or let a pod start go first; calls that ask for more go last.
package lanes

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/vpcport"
)

// DefaultCalls is the default limit of calls in flight.
const DefaultCalls = 8

// Options configure Lanes.
type Options struct {
	Calls int // maximum calls in flight; 0: DefaultCalls
	Clock clock.Clock
}

// Limiter limit all calls that the provider counts together: those to one endpoint. They may be used by
// many goroutines.
type Limiter struct {
	most  int
	clock clock.Clock

	mu       sync.Mutex // guards all below; nothing is called under it
	allowed  int        // the current limit
	underWay int
	waiting  queue
	went     int       // successful calls since allowed changed
	refused  int       // consecutive reductions of allowed
	changed  time.Time // the last reduction of allowed
	until    time.Time // no call starts before
	sleeping bool      // a goroutine waits for until
}

// New returns Lanes without calls.
func New(o Options) *Limiter {
	o.Calls = cmp.Or(max(o.Calls, 0), DefaultCalls)
	return &Limiter{most: o.Calls, allowed: o.Calls, clock: cmp.Or[clock.Clock](o.Clock, clock.Real{})}
}

// Usage is the current limit and the number of calls.
type Usage struct{ Allowed, InFlight, Waiting int }

// Usage returns the current usage.
func (l *Limiter) Usage() Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Usage{l.allowed, l.underWay, l.waiting.len()}
}

// do makes a call when its turn comes. If the context ends before that, the call is not made.
func (l *Limiter) do(ctx context.Context, op string, u urgency, o Observer, call func() error) error {
	asked := l.clock.Now()
	if err := l.enter(ctx, u); err != nil {
		return &vpcport.Error{Class: vpcport.Transient, Op: op, Message: "not sent: the wait for other calls ended", Err: err}
	}
	began := l.clock.Now()
	err := error(&vpcport.Error{Class: vpcport.Bug, Op: op, Message: "the call panicked"})
	defer func() { l.leave(began, err) }()
	err = call()
	if o != nil {
		o.Called(op, err, began.Sub(asked), l.clock.Now().Sub(began))
	}
	return err
}

// enter waits for the turn of a call, or returns the cause of the end of ctx.
func (l *Limiter) enter(ctx context.Context, u urgency) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	w := &waiter{urgency: u, turn: make(chan struct{})}
	l.mu.Lock()
	l.waiting.add(w)
	l.next()
	l.mu.Unlock()
	select {
	case <-w.turn:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.waiting.remove(w) { // its turn has just come
		l.underWay--
		l.next()
	}
	return context.Cause(ctx)
}

// leave records the end of a call.
func (l *Limiter) leave(began time.Time, err error) {
	now := l.clock.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.underWay--
	switch vpcport.ClassOf(err) {
	case vpcport.Throttled:
		l.hold(began, now, err)
	case vpcport.Transient: // says nothing about the limit
	default:
		l.went, l.refused = l.went+1, 0
		if l.went >= l.allowed && l.allowed < l.most {
			l.allowed, l.went = l.allowed+1, 0
		}
	}
	l.next()
}

// hold reduces the limit after a throttled call. Calls that started before the last reduction are part
// of the same burst: they can only prolong the wait.
func (l *Limiter) hold(began, now time.Time, err error) {
	policy := vpcport.PolicyOf(vpcport.Throttled)
	wait := retryAfter(err)
	if !began.Before(l.changed) {
		if wait == 0 {
			wait = retry.Jitter(retry.Delay(policy.First, policy.Last, l.refused))
		}
		l.allowed, l.went, l.changed = max(1, l.allowed/2), 0, now
		l.refused++
	}
	if until := now.Add(wait); until.After(l.until) {
		l.until = until
	}
}

// next starts the calls whose turn it is. l.mu is held.
func (l *Limiter) next() {
	if l.waiting.len() == 0 || l.underWay >= l.allowed {
		return
	}
	if wait := l.until.Sub(l.clock.Now()); wait > 0 {
		if !l.sleeping {
			l.sleeping = true
			go l.sleep(l.clock.After(wait))
		}
		return
	}
	for l.waiting.len() > 0 && l.underWay < l.allowed {
		l.underWay++
		close(l.waiting.take().turn)
	}
}

func (l *Limiter) sleep(over <-chan time.Time) {
	<-over
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sleeping = false
	l.next()
}

// urgency orders waiting calls; the lowest is the most urgent.
type urgency int

const (
	first  urgency = iota // frees something or lets a pod start: deletions and bindings
	second                // reads
	third                 // creates ports
	urgencies
)

// fairness is how many calls in a row may overtake the oldest one.
const fairness = 8

// waiter is a waiting call.
type waiter struct {
	urgency urgency
	number  uint64        // in the order of arrival
	turn    chan struct{} // closed when the call may start
}

// queue holds the waiting calls. The zero value is empty.
type queue struct {
	by       [urgencies][]*waiter // in the order of arrival
	numbers  uint64
	overtook int // calls in a row that overtook the oldest one
}

func (q *queue) len() (n int) {
	for _, ws := range q.by {
		n += len(ws)
	}
	return n
}

func (q *queue) add(w *waiter) {
	q.numbers++
	w.number = q.numbers
	q.by[w.urgency] = append(q.by[w.urgency], w)
}

// remove removes a call; false if it is not in the queue.
func (q *queue) remove(w *waiter) bool {
	i := slices.Index(q.by[w.urgency], w)
	if i >= 0 {
		q.by[w.urgency] = slices.Delete(q.by[w.urgency], i, i+1)
	}
	return i >= 0
}

// take removes the next call from a queue that is not empty: the first of the most urgent ones, but after
// fairness calls that overtook it, the oldest one.
func (q *queue) take() *waiter {
	var urgent, oldest *waiter
	for _, ws := range q.by {
		if len(ws) == 0 {
			continue
		}
		if urgent == nil {
			urgent = ws[0]
		}
		if oldest == nil || ws[0].number < oldest.number {
			oldest = ws[0]
		}
	}
	next := urgent
	if urgent == oldest || q.overtook >= fairness {
		next, q.overtook = oldest, 0
	} else {
		q.overtook++
	}
	q.remove(next)
	return next
}
