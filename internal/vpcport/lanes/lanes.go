// Package lanes limits how many calls to a provider of VPC ports are in flight. When the provider
// throttles (class Throttled), the limit is halved, and no call starts until the time that the provider
// asked for. Then the limit grows by one for each round of successful calls. Waiting calls that free
// something or let a pod start go first; calls that ask for more go last.
package lanes

import (
	"cmp"
	"context"
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
