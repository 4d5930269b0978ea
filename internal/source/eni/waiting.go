package eni

import (
	"container/list"
	"context"
	"fmt"
	"time"

	"github.com/berthnet/berth/internal/attachment"
	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/eni"
	"github.com/berthnet/berth/internal/source"
)

// waiter is one Acquire that has no address yet.
type waiter struct {
	key     attachment.Key
	granted chan source.Lease // of one
	at      *list.Element     // nil once granted
}

// wait queues a key behind those who came before and serves whom it can.
// s.mu is held.
func (s *Source) wait(key attachment.Key) *waiter {
	w := &waiter{key: key, granted: make(chan source.Lease, 1)}
	w.at = s.waiters.PushBack(w)
	s.serve(s.clock.Now())
	return w
}

// serve hands out addresses in the order of arrival while any is assignable.
// s.mu is held.
func (s *Source) serve(now time.Time) {
	for s.waiters.Len() > 0 && !s.unproven {
		w := s.waiters.Front().Value.(*waiter)
		a, ok := s.alloc.Take(w.key, now)
		if !ok {
			return
		}
		l := source.Lease{IPv4: a.Addr, ENI: a.Group, DeviceIndex: a.Index}
		s.leases[w.key] = l
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
	s.rec.Kick() // one fewer to grow for
	if why.Err == nil {
		why.Err = ctx.Err()
	}
	return source.Lease{}, why
}

// reasons by class of what went wrong at the cloud.
var reasons = map[cloud.Class]string{
	cloud.Throttled: "throttled", cloud.SubnetFull: eni.ReasonSubnetFull, cloud.LimitReached: eni.ReasonENILimit,
	cloud.Permission: "permission", cloud.Bug: "refused", cloud.Gone: "refused",
}

// whyNone tells why no address is assignable. s.mu is held.
func (s *Source) whyNone() *source.Exhausted {
	st := s.rec.Status()
	switch {
	case st.Err != nil && (st.Grows || !st.Confirmed):
		reason, ok := reasons[st.Class]
		if !ok {
			reason = "unreachable"
		}
		return &source.Exhausted{Reason: reason, Message: "no address is free: " + st.LastError, Err: st.Err}
	case !st.Confirmed && !s.served:
		return &source.Exhausted{Reason: "starting", Message: "no address is free: EC2 has not told yet which addresses this node has"}
	case st.Shortage != "":
		return &source.Exhausted{Reason: st.Shortage, Message: "no address is free: " + st.Explanation}
	}
	for _, id := range sortedIDs(s.published) {
		if why := s.down[id]; why != "" {
			return &source.Exhausted{Reason: "not-ready", Message: fmt.Sprintf("no address is free: the data path of %s is not ready: %s", id, why)}
		}
	}
	return &source.Exhausted{Reason: "growing", Message: "no address is free yet: EC2 was asked for more and they have not arrived in time"}
}
