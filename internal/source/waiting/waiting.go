// Package waiting is who waits for an address, in the order of arrival, and how long:
// Acquire, as all address sources have it.
package waiting

import (
	"container/list"
	"context"
	"sync"

	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/source"
)

// Queue is the waiters of one supply. The zero value is ready. It is not safe
// for concurrent use: its owner locks, also around the methods of its waiters
// other than Answered.
type Queue struct {
	list list.List // of *Waiter, the first to come first
}

// Waiter is one Acquire without an answer yet.
type Waiter struct {
	Request source.Request

	answer chan Answer // of one
	queue  *Queue      // nil once answered or left
	at     *list.Element
}

// Answer ends a wait: with a lease, or with the reason why there will be none.
type Answer struct {
	Lease source.Lease
	Err   error
}

// Push lets a request wait behind those who came before.
func (q *Queue) Push(req source.Request) *Waiter {
	w := &Waiter{Request: req, answer: make(chan Answer, 1)}
	w.join(q)
	return w
}

// Len tells how many wait.
func (q *Queue) Len() int { return q.list.Len() }

// Front is the waiter who came first, or nil.
func (q *Queue) Front() *Waiter {
	if e := q.list.Front(); e != nil {
		return e.Value.(*Waiter)
	}
	return nil
}

// All lists the waiters, the first to come first.
func (q *Queue) All() []*Waiter {
	out := make([]*Waiter, 0, q.Len())
	for e := q.list.Front(); e != nil; e = e.Next() {
		out = append(out, e.Value.(*Waiter))
	}
	return out
}

// Find is the waiter of an attachment, or nil.
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

// await returns the answer, or false when ctx ended first. An answer that is there
// already, as when an address is warm, comes before the end of ctx.
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

// Leave ends the wait without an answer. It tells false when there is one
// already: nothing that was granted may be lost.
func (w *Waiter) Leave() bool {
	if w.queue == nil {
		return false
	}
	w.part()
	return true
}

// Move lets a waiter go on waiting at the end of another queue.
func (w *Waiter) Move(to *Queue) {
	if w.queue == nil {
		return
	}
	w.part()
	w.join(to)
}

// Queue is where the waiter waits; nil once it was answered or left.
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

// Desk is what Acquire asks of a source.
type Desk struct {
	Lock sync.Locker // the source's, which is held when the functions below are called
	// Held is the lease that a key has already.
	Held func(attachment.Key) (source.Lease, bool)
	// Admit queues a request, and serves it at once if it is its turn.
	Admit func(source.Request) *Waiter
	// Why tells why a waiter has got nothing.
	Why func(*Waiter) *source.Exhausted
	// Changed says that one more waits, or one fewer.
	Changed func()
}

// Acquire implements source.Source.
func (d Desk) Acquire(ctx context.Context, req source.Request) (source.Lease, error) {
	d.Lock.Lock()
	if l, ok := d.Held(req.Key); ok {
		d.Lock.Unlock()
		return l, nil
	}
	w := d.Admit(req)
	d.Changed()
	d.Lock.Unlock()
	if a, ok := w.await(ctx); ok {
		return a.Lease, a.Err
	}
	return d.giveUp(ctx, w)
}

// giveUp ends a wait whose context ended. An address that came at the same
// moment is not lost: it is the answer.
func (d Desk) giveUp(ctx context.Context, w *Waiter) (source.Lease, error) {
	d.Lock.Lock()
	defer d.Lock.Unlock()
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
