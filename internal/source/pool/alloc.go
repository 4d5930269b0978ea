package pool

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/waiting"
)

// restore marks a lease as held, whether the node has its block yet or not.
func (l *ledger) restore(req source.Request, lease source.Lease, now time.Time) error {
	if len(lease.Addrs()) == 0 {
		return errors.New("it has no address")
	}
	if _, ok := l.leases[req.Key]; ok {
		return errors.New("the attachment has one already")
	}
	for _, a := range lease.Addrs() {
		if other, taken := l.byAddr[a]; taken {
			return fmt.Errorf("%s is held by %s", a, other)
		}
	}
	h := hold{Lease: lease, pod: req.Pod}
	if b, first := l.find(lease.Addrs()[0]); b != nil {
		if err := l.pool(b.pool).alloc.Hold(req.Key, first, now); err != nil {
			return err
		}
		h.allocatedIn, h.Pool, h.Block = b.pool, b.pool, b.name
	}
	l.keep(req.Key, h)
	l.usable = true
	return nil
}

// keep enters a lease.
func (l *ledger) keep(key attachment.Key, h hold) {
	l.leases[key] = h
	for _, a := range h.Addrs() {
		l.byAddr[a] = key
	}
	if h.pod.UID != "" && h.Pool != "" && !l.synced.mayChoose() {
		l.chosen[interfaceOf(key, h.pod)] = h.Pool
	}
}

// restoreCooling marks an address as cooling, or as having cooled, and with it
// the other one of its pair. Where the block is not known, only an
// address that still cools matters.
func (l *ledger) restoreCooling(a netip.Addr, since, now time.Time) {
	if since.After(now) {
		since = now // the wall clock was set back: never cool longer than a period
	}
	l.usable = true
	if b, first := l.find(a); b != nil {
		l.pool(b.pool).alloc.Cool(first, since, now)
		return
	}
	if since.Add(l.cooling).After(now) {
		l.cool(a, since)
	}
}

func (l *ledger) cool(a netip.Addr, since time.Time) {
	if before, ok := l.unlisted[a]; !ok || before.Before(since) {
		l.unlisted[a] = since
	}
}

// find looks for the block of an address of either family. Rare: at a start.
func (l *ledger) find(a netip.Addr) (*heldBlock, netip.Addr) {
	for _, h := range l.blocks {
		if first, ok := h.place(a); ok && h.conflict == "" {
			return h, first
		}
	}
	return nil, netip.Addr{}
}

// admit queues a request, and serves it at once if it is its turn. A request for which
// there is no pool fails at once.
func (l *ledger) admit(req source.Request, now time.Time) *waiting.Waiter {
	w := l.undecided.Push(req)
	l.decide(w, now)
	return w
}

// decide moves a waiter to the queue of its pool, if that is known by now.
func (l *ledger) decide(w *waiting.Waiter, now time.Time) {
	name, final, why := choose(l.world, w.Request.Pod, l.told(w.Request.Wish))
	if before := l.chosen[interfaceOf(w.Request.Key, w.Request.Pod)]; name == "" && !final && before != "" {
		name = before // it was chosen by what the API server said then, which does not answer now
	}
	switch {
	case name != "":
		s := l.pool(name)
		w.Move(&s.queue)
		l.serve(s, now)
	case final:
		w.Fail(why)
	}
}

// decideAll looks again at those whose pool was not known. Once namespaces and
// pools were listed, it is chosen by them, and no longer by what is remembered.
func (l *ledger) decideAll(now time.Time) {
	if l.synced.mayChoose() {
		clear(l.chosen)
	}
	for _, w := range l.undecided.All() {
		l.decide(w, now)
	}
}

// serve hands out addresses of a pool in the order of arrival while any is
// assignable. All handing out is done here.
func (l *ledger) serve(s *poolState, now time.Time) {
	for s.queue.Len() > 0 && !l.unconfirmed {
		w := s.queue.Front()
		a, ok := s.alloc.Take(w.Request.Key, now)
		if !ok {
			return
		}
		lease := source.Lease{Origin: introspect.Origin{Pool: s.name, Block: a.Group}}
		for _, addr := range l.blocks[a.Group].addresses(a.Addr) {
			if addr.Is4() {
				lease.IPv4 = addr
			} else {
				lease.IPv6 = addr
			}
		}
		l.keep(w.Request.Key, hold{Lease: lease, pod: w.Request.Pod, allocatedIn: s.name})
		w.Grant(lease)
	}
}

// serveAll serves every pool.
func (l *ledger) serveAll(now time.Time) {
	for _, s := range l.pools {
		l.serve(s, now)
	}
}

// release ends a hold; the addresses cool from now on.
func (l *ledger) release(key attachment.Key, now time.Time) bool {
	h, ok := l.drop(key)
	if !ok {
		return false
	}
	if h.allocatedIn == "" {
		for _, a := range h.Addrs() {
			l.cool(a, now)
		}
		return true
	}
	s := l.pools[h.allocatedIn]
	s.alloc.Release(key, now)
	l.serve(s, now) // without a cooling period it is free at once
	return true
}

// cancel ends a hold whose addresses no pod ever had.
func (l *ledger) cancel(key attachment.Key, now time.Time) bool {
	h, ok := l.drop(key)
	if ok && h.allocatedIn != "" {
		s := l.pools[h.allocatedIn]
		s.alloc.Cancel(key)
		l.serve(s, now)
	}
	return ok
}

func (l *ledger) drop(key attachment.Key) (hold, bool) {
	h, ok := l.leases[key]
	if !ok {
		return h, false
	}
	delete(l.leases, key)
	for _, a := range h.Addrs() {
		delete(l.byAddr, a)
	}
	return h, true
}
