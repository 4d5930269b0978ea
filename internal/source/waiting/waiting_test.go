package waiting_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/waiting"
)

func request(id string) source.Request {
	return source.Request{Key: attachment.Key{ContainerID: id, IfName: "eth0"}}
}

func order(q *waiting.Queue) (ids string) {
	for _, w := range q.All() {
		ids += w.Request.Key.ContainerID
	}
	return ids
}

func TestQueue(t *testing.T) {
	var q, other waiting.Queue
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
