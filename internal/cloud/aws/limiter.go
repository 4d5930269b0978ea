package aws

import (
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
)

// Limit is a ceiling for the calls of one API action, in calls per second and
// calls at once. A zero field sets no limit.
type Limit struct {
	Rate  float64
	Burst int
}

// limiter queues the calls of one API action, first come first served, and
// lets them go as its pacer says.
type limiter struct {
	clock clock.Clock

	mu     sync.Mutex // guards all below; never held across a wait
	pacer  *pacer
	queue  list.List // of *waiter, by ticket
	ticket uint64    // the last one given out
}

type waiter struct {
	ticket uint64
	front  chan struct{} // closed once no other waiter is before this one
}

func newLimiter(c clock.Clock, ceiling Limit) *limiter {
	return &limiter{clock: c, pacer: newPacer(c.Now(), ceiling)}
}

// acquire waits for the turn of a call. A ticket of 0 joins the end of the
// queue; a call that was throttled passes the ticket it had and keeps its
// place. When ctx ends first, the queue is as if the call had never joined.
// Waited is how long the call was held back,
// 0 when it was not.
func (l *limiter) acquire(ctx context.Context, ticket uint64) (p permit, t uint64, waited time.Duration, err error) {
	if ctx.Err() != nil {
		return permit{}, ticket, 0, context.Cause(ctx)
	}
	place, w := l.join(ticket)
	start := l.clock.Now()
	held := false
	select {
	case <-w.front:
	default:
		held = true
		select {
		case <-w.front:
		case <-ctx.Done():
			l.leave(place)
			return permit{}, w.ticket, l.clock.Now().Sub(start), context.Cause(ctx)
		}
	}
	for {
		delay, p := l.try(place)
		switch {
		case delay == 0 && held:
			return p, w.ticket, l.clock.Now().Sub(start), nil
		case delay == 0:
			return p, w.ticket, 0, nil
		}
		held = true
		select {
		case <-l.clock.After(delay):
		case <-ctx.Done():
			l.leave(place)
			return permit{}, w.ticket, l.clock.Now().Sub(start), context.Cause(ctx)
		}
	}
}

// join puts a call in the queue, before all that came later.
func (l *limiter) join(ticket uint64) (*list.Element, *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ticket == 0 {
		l.ticket++
		ticket = l.ticket
	}
	w := &waiter{ticket: ticket, front: make(chan struct{})}
	next := l.queue.Front()
	// The first waiter is already waiting for its permit and stays first; a
	// returning call is at most one permit late by that.
	if next != nil {
		next = next.Next()
	}
	for next != nil && next.Value.(*waiter).ticket < ticket {
		next = next.Next()
	}
	if next != nil {
		return l.queue.InsertBefore(w, next), w
	}
	place := l.queue.PushBack(w)
	if place == l.queue.Front() {
		close(w.front)
	}
	return place, w
}

func (l *limiter) leave(place *list.Element) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(place)
}

// remove takes a waiter out and lets the next one step up. l.mu is held.
func (l *limiter) remove(place *list.Element) {
	first := place == l.queue.Front()
	l.queue.Remove(place)
	if next := l.queue.Front(); first && next != nil {
		close(next.Value.(*waiter).front)
	}
}

// try draws a permit for the first waiter, or tells how long it has to wait.
func (l *limiter) try(place *list.Element) (time.Duration, permit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	if d := l.pacer.delay(now); d > 0 {
		return d, permit{}
	}
	l.remove(place)
	return 0, l.pacer.take(now)
}

// report hands back the outcome of a permitted call.
func (l *limiter) report(p permit, throttled bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if throttled {
		l.pacer.refuse(l.clock.Now(), p)
	} else {
		l.pacer.pass(l.clock.Now(), p)
	}
}
