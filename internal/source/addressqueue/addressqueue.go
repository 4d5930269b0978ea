// Package addressqueue queues requests for addresses in the order of arrival. It implements Acquire for all address sources.
package addressqueue

import (
	"container/list"
	"context"

	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/source"
)

// Queue is a queue of waiters. The zero value is ready. It is not safe for concurrent use: its owner locks, also around
// the methods of its waiters other than Answered.
type Queue struct {
	list list.List // of *Waiter, in the order of arrival
}

// Waiter is an Acquire that waits for its answer.
type Waiter struct {
	Request source.Request

	answer chan Answer // with room for one
	queue  *Queue      // nil once answered or left
	at     *list.Element
}

// Answer ends a wait: with a lease or an error.
type Answer struct {
	Lease source.Lease
	Err   error
}

// Push appends a request to the queue.
func (q *Queue) Push(req source.Request) *Waiter {
	w := &Waiter{Request: req, answer: make(chan Answer, 1)}
	w.join(q)
	return w
}

// Len returns the length of the queue.
func (q *Queue) Len() int { return q.list.Len() }

// Front returns the first waiter, or nil.
func (q *Queue) Front() *Waiter {
	if e := q.list.Front(); e != nil {
		return e.Value.(*Waiter)
	}
	return nil
}

// All returns the waiters in the order of arrival.
func (q *Queue) All() []*Waiter {
	out := make([]*Waiter, 0, q.Len())
	for e := q.list.Front(); e != nil; e = e.Next() {
		out = append(out, e.Value.(*Waiter))
	}
	return out
}

// Find returns the waiter of an attachment, or nil.
func (q *Queue) Find(key attachment.Key) *Waiter {
	for e := q.list.Front(); e != nil; e = e.Next() {
		if w := e.Value.(*Waiter); w.Request.Key == key {
			return w
		}
	}
	return nil
}

// Answered delivers the answer.
func (w *Waiter) Answered() <-chan Answer { return w.answer }

// await returns the answer, or false when ctx ended first. An answer that is already available, because an address was
// free, takes precedence over the end of ctx.
func (w *Waiter) await(ctx context.Context) (Answer, bool) {
	select {
	case a := <-w.answer:
		return a, true
	default:
	}
	select {
	case a := <-w.answer:
		return a, true
	case <-ctx.Done():
		return Answer{}, false
	}
}

// Grant ends the wait with a lease.
func (w *Waiter) Grant(l source.Lease) { w.end(Answer{Lease: l}) }

// Fail ends the wait with an error.
func (w *Waiter) Fail(err error) { w.end(Answer{Err: err}) }

// Leave ends the wait without an answer. It returns false if there is an answer already, which must not be lost.
func (w *Waiter) Leave() bool {
	if w.queue == nil {
		return false
	}
	w.part()
	return true
}

// Move moves a waiter to the end of another queue.
func (w *Waiter) Move(to *Queue) {
	if w.queue == nil {
		return
	}
	w.part()
	w.join(to)
}

// Queue returns the waiter's queue; nil once it was answered or left.
func (w *Waiter) Queue() *Queue { return w.queue }

func (w *Waiter) end(a Answer) {
	if w.Leave() {
		w.answer <- a
	}
}

func (w *Waiter) join(q *Queue) {
	w.queue, w.at = q, q.list.PushBack(w)
}

func (w *Waiter) part() {
	w.queue.list.Remove(w.at)
	w.queue, w.at = nil, nil
}

// Acquirer implements Acquire with the functions of a source.
type Acquirer struct {
	// With calls do while the source is locked. The functions below are called by do.
	With func(do func())
	// Held returns the lease that a key already has.
	Held func(attachment.Key) (source.Lease, bool)
	// Admit queues a request, and serves it at once if possible.
	Admit func(source.Request) *Waiter
	// Why returns why a waiter is waiting.
	Why func(*Waiter) *source.Exhausted
	// Changed is called when a queue became longer or shorter.
	Changed func()
}

// Acquire implements source.Source.
func (d Acquirer) Acquire(ctx context.Context, req source.Request) (l source.Lease, err error) {
	var w *Waiter // nil: the key has a lease already
	d.With(func() {
		var held bool
		if l, held = d.Held(req.Key); !held {
			w = d.Admit(req)
			d.Changed()
		}
	})
	if w == nil {
		return l, nil
	}
	if a, ok := w.await(ctx); ok {
		return a.Lease, a.Err
	}
	d.With(func() { l, err = d.giveUp(ctx, w) })
	return l, err
}

// giveUp ends a wait whose context ended. If an address was granted at the same time, it is returned.
func (d Acquirer) giveUp(ctx context.Context, w *Waiter) (source.Lease, error) {
	why := d.Why(w)
	if !w.Leave() {
		a := <-w.Answered()
		return a.Lease, a.Err
	}
	d.Changed()
	if why.Err == nil {
		why.Err = ctx.Err()
	}
	return source.Lease{}, why
}
