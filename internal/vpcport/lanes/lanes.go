// Package lanes bounds how many calls to a provider of VPC ports are under way at once.
// A provider that refuses calls as too many (class Throttled) gets half as many, and none
// for as long as it asks for; then one more for each round of calls that went well.
// Among the calls that wait, those that give something back or let a pod start come
// before those that ask for more.
//
//	lanes.go     the calls under way and those that wait
//	queue.go     which of them is next: a decision
//	provider.go  a provider whose calls go through it
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

// DefaultMost is how many calls are under way at once unless Options say otherwise.
const DefaultMost = 8

// Options are what Lanes need to know. Zero values take the defaults named.
type Options struct {
	Most  int // calls at once; DefaultMost
	Clock clock.Clock
}

// Lanes are for all calls that a provider counts together: those to one endpoint.
// They may be used by many goroutines at once.
type Lanes struct {
	most  int
	clock clock.Clock

	mu       sync.Mutex // guards all below; nothing is called under it
	allowed  int        // calls at once, for now
	underWay int
	waiting  queue
	went     int       // calls that went well since allowed changed
	refused  int       // times in a row that all calls were held back
	changed  time.Time // when allowed was last made less
	until    time.Time // no call begins before
	sleeping bool      // a goroutine waits for until
}

// New returns lanes without any calls.
func New(o Options) *Lanes {
	o.Most = cmp.Or(max(o.Most, 0), DefaultMost)
	return &Lanes{most: o.Most, allowed: o.Most, clock: cmp.Or[clock.Clock](o.Clock, clock.Real{})}
}

// Usage is what goes on now.
type Usage struct{ Allowed, UnderWay, Waiting int }

// Usage counts the calls.
func (l *Lanes) Usage() Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Usage{l.allowed, l.underWay, l.waiting.len()}
}

// do makes a call once it is its turn. A call whose context ends before is not made.
func (l *Lanes) do(ctx context.Context, op string, u urgency, told Observer, call func() error) error {
	asked := l.clock.Now()
	if err := l.enter(ctx, u); err != nil {
		return &vpcport.Error{Class: vpcport.Transient, Op: op, Message: "not sent: it waited for other calls to end", Err: err}
	}
	began := l.clock.Now()
	err := error(&vpcport.Error{Class: vpcport.Bug, Op: op, Message: "the call panicked"})
	defer func() { l.leave(began, err) }()
	err = call()
	if told != nil {
		told.Called(op, err, began.Sub(asked), l.clock.Now().Sub(began))
	}
	return err
}

// enter returns once a call may begin, or with the cause of ctx's end.
func (l *Lanes) enter(ctx context.Context, u urgency) error {
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
	if !l.waiting.remove(w) { // its turn came meanwhile
		l.underWay--
		l.next()
	}
	return context.Cause(ctx)
}

// leave notes the end of a call that began at a moment.
func (l *Lanes) leave(began time.Time, err error) {
	now := l.clock.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.underWay--
	switch vpcport.ClassOf(err) {
	case vpcport.Throttled:
		l.hold(began, now, err)
	case vpcport.Transient: // nothing is learned of how many are too many
	default:
		l.went, l.refused = l.went+1, 0
		if l.went >= l.allowed && l.allowed < l.most {
			l.allowed, l.went = l.allowed+1, 0
		}
	}
	l.next()
}

// hold takes a refusal in. Those of calls that began before the last one was taken in are
// of the same crowd: they change nothing but how long the provider asks to wait.
func (l *Lanes) hold(began, now time.Time, err error) {
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

// next lets calls begin whose turn it is. l.mu is held.
func (l *Lanes) next() {
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

func (l *Lanes) sleep(over <-chan time.Time) {
	<-over
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sleeping = false
	l.next()
}
