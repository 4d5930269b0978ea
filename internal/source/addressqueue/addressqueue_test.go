package addressqueue_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/addressqueue"
)

func request(id string) source.Request {
	return source.Request{Key: attachment.Key{ContainerID: id, IfName: "eth0"}}
}

func order(q *addressqueue.Queue) (ids string) {
	for _, w := range q.All() {
		ids += w.Request.Key.ContainerID
	}
	return ids
}

func TestQueue(t *testing.T) {
	var q, other addressqueue.Queue
	a, b, c := q.Push(request("a")), q.Push(request("b")), q.Push(request("c"))
	if got := order(&q); got != "abc" || q.Len() != 3 || q.Front() != a {
		t.Errorf("queue %s, front %v", got, q.Front())
	}
	lease := source.Lease{IPv4: netip.MustParseAddr("10.0.0.1")}
	a.Grant(lease)
	if got := <-a.Answered(); got.Lease != lease || got.Err != nil {
		t.Errorf("answer %+v", got)
	}
	if a.Leave() {
		t.Error("one who has an answer left without")
	}
	b.Move(&other)
	if order(&q) != "c" || order(&other) != "b" || b.Queue() != &other {
		t.Errorf("queues %s and %s", order(&q), order(&other))
	}
	broken := errors.New("broken")
	b.Fail(broken)
	b.Grant(lease) // too late
	b.Move(&q)
	if got := <-b.Answered(); !errors.Is(got.Err, broken) {
		t.Errorf("answer %+v", got)
	}
	if !c.Leave() || q.Len()+other.Len() != 0 || q.Front() != nil || c.Queue() != nil {
		t.Errorf("queues %s and %s", order(&q), order(&other))
	}
	select {
	case got := <-c.Answered():
		t.Errorf("one who left got %+v", got)
	default:
	}
}

// How an Acquire ends whose context is over, by what its source does.
func TestAcquire(t *testing.T) {
	lease := source.Lease{IPv4: netip.MustParseAddr("10.0.0.1")}
	refused := errors.New("refused")
	for name, c := range map[string]struct {
		held    bool                       // the key has a lease already
		admit   func(*addressqueue.Waiter) // what its source does at once
		later   func(*addressqueue.Waiter) // what it does before it is asked why
		err     error
		changed int
	}{
		"held already":             {held: true},
		"warm":                     {admit: func(w *addressqueue.Waiter) { w.Grant(lease) }, changed: 1},
		"refused":                  {admit: func(w *addressqueue.Waiter) { w.Fail(refused) }, err: refused, changed: 1},
		"given up":                 {err: context.Canceled, changed: 2},
		"given at the last moment": {later: func(w *addressqueue.Waiter) { w.Grant(lease) }, changed: 1},
	} {
		t.Run(name, func(t *testing.T) {
			var queue addressqueue.Queue
			changed := 0
			d := addressqueue.Acquirer{
				With: func(do func()) { do() },
				Held: func(attachment.Key) (source.Lease, bool) { return lease, c.held },
				Admit: func(r source.Request) *addressqueue.Waiter {
					w := queue.Push(r)
					if c.admit != nil {
						c.admit(w)
					}
					return w
				},
				Why: func(w *addressqueue.Waiter) *source.Exhausted {
					if c.later != nil {
						c.later(w)
					}
					return &source.Exhausted{Reason: "growing"}
				},
				Changed: func() { changed++ },
			}
			over, cancel := context.WithCancel(t.Context())
			cancel()
			l, err := d.Acquire(over, request("a"))
			if !errors.Is(err, c.err) || (err == nil) != (l == lease) || changed != c.changed || queue.Len() != 0 {
				t.Errorf("%v, %v; changed %d times, %d wait", l, err, changed, queue.Len())
			}
		})
	}
}
