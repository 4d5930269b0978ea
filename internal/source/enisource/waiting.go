package enisource

import (
	"fmt"
	"time"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/waiting"
)

// wait queues a request behind those who came before and serves whom it can.
// s.mu is held.
func (s *Source) wait(req source.Request) *waiting.Waiter {
	w := s.waiters.Push(req)
	s.serve(s.clock.Now())
	return w
}

// serve hands out addresses in the order of arrival while any is assignable.
// All handing out is done here. s.mu is held.
func (s *Source) serve(now time.Time) {
	s.withdrawReleasing(now)
	for s.waiters.Len() > 0 && !s.unconfirmed {
		w := s.waiters.Front()
		t, ok := s.alloc.Take(w.Request.Key, s.inv.Families, now)
		if !ok {
			return
		}
		l := source.Lease{
			IPv4: t.Addresses[ipfamily.IPv4], IPv6: t.Addresses[ipfamily.IPv6],
			Origin: introspect.Origin{ENI: t.Group}, Uplink: t.Index,
		}
		s.leases[w.Request.Key] = hold{l, w.Request.Pod}
		w.Grant(l)
	}
}

// held is the lease of a key. s.mu is held.
func (s *Source) held(key attachment.Key) (source.Lease, bool) {
	h, ok := s.leases[key]
	return h.Lease, ok
}

func (s *Source) why(*waiting.Waiter) *source.Exhausted { return s.whyNone() }

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
