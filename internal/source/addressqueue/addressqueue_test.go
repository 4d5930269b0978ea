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
		t.Errorf("queue = %s, front = %v; want abc with a in front", got, q.Front())
	}
	lease := source.Lease{IPv4: netip.MustParseAddr("10.0.0.1")}
	a.Grant(lease)
	if got := <-a.Answered(); got.Lease != lease || got.Err != nil {
		t.Errorf("answer = %+v, want the lease", got)
	}
	if a.Leave() {
		t.Error("Leave() succeeded after an answer")
	}
	b.Move(&other)
	if order(&q) != "c" || order(&other) != "b" || b.Queue() != &other {
		t.Errorf("queues = %s and %s, want c and b", order(&q), order(&other))
	}
	broken := errors.New("broken")
	b.Fail(broken)
	b.Grant(lease) // too late, so it has no effect
	b.Move(&q)
	if got := <-b.Answered(); !errors.Is(got.Err, broken) {
		t.Errorf("answer = %+v, want error %v", got, broken)
	}
	if !c.Leave() || q.Len()+other.Len() != 0 || q.Front() != nil || c.Queue() != nil {
		t.Errorf("queues = %s and %s, want both empty", order(&q), order(&other))
	}
	select {
	case got := <-c.Answered():
		t.Errorf("a waiter that left got answer %+v", got)
	default:
	}
}

// The result of an Acquire whose context has ended depends on its source.
func TestAcquire(t *testing.T) {
	lease := source.Lease{IPv4: netip.MustParseAddr("10.0.0.1")}
	refused := errors.New("refused")
	for name, c := range map[string]struct {
		held    bool                       // the key already has a lease
		admit   func(*addressqueue.Waiter) // immediate reaction of the source
		later   func(*addressqueue.Waiter) // reaction of the source before Why is called
		err     error
		changed int
	}{
		"already held":               {held: true},
		"warm":                       {admit: func(w *addressqueue.Waiter) { w.Grant(lease) }, changed: 1},
		"refused":                    {admit: func(w *addressqueue.Waiter) { w.Fail(refused) }, err: refused, changed: 1},
		"given up":                   {err: context.Canceled, changed: 2},
		"granted at the last moment": {later: func(w *addressqueue.Waiter) { w.Grant(lease) }, changed: 1},
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
				t.Errorf("Acquire() = %v, %v; Changed called %d times, %d waiting", l, err, changed, queue.Len())
			}
		})
	}
}
