package eni

import (
	"container/list"
	"context"
	"fmt"
	"time"

	"github.com/berthnet/berth/internal/source"
)

// waiter is one Acquire that has no address yet.
type waiter struct {
	req     source.Request
	granted chan source.Lease // of one
	at      *list.Element     // nil once granted
}

// wait queues a request behind those who came before and serves whom it can.
// s.mu is held.
func (s *Source) wait(req source.Request) *waiter {
	w := &waiter{req: req, granted: make(chan source.Lease, 1)}
	w.at = s.waiters.PushBack(w)
	s.serve(s.clock.Now())
	return w
}

// serve hands out addresses in the order of arrival while any is assignable.
// All handing out is done here. s.mu is held.
func (s *Source) serve(now time.Time) {
	s.keepBack(now)
	for s.waiters.Len() > 0 && !s.unproven {
		w := s.waiters.Front().Value.(*waiter)
		a, ok := s.alloc.Take(w.req.Key, now)
		if !ok {
			return
		}
		l := source.Lease{IPv4: a.Addr, ENI: a.Group, DeviceIndex: a.Index}
		s.leases[w.req.Key] = hold{l, w.req.Pod}
		s.waiters.Remove(w.at)
		w.at = nil
		w.granted <- l
	}
}

// giveUp ends a wait whose context ended. An address that came at the same
// moment is not lost: it is the answer.
func (s *Source) giveUp(ctx context.Context, w *waiter) (source.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.at == nil {
		return <-w.granted, nil
	}
	why := s.whyNone()
	s.waiters.Remove(w.at)
	s.supply.Kick() // one fewer to grow for
	if why.Err == nil {
		why.Err = ctx.Err()
	}
	return source.Lease{}, why
}

// whyNone tells why no address is assignable. s.mu is held.
func (s *Source) whyNone() *source.Exhausted {
	why := s.supply.Why(s.served)
	if why.Reason != Growing {
		return why
	}
	for _, id := range sortedIDs(s.published) {
		if down := s.down[id]; down != "" {
			return &source.Exhausted{Reason: "not-ready", Message: fmt.Sprintf("no address is free: the data path of %s is not ready: %s", id, down)}
		}
	}
	return why
}
