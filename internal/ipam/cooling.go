package ipam

import (
	"container/heap"
	"net/netip"
	"time"
)

// A released address cools for a period (proposal for the Amazon VPC CNI, "Pod IP address cooling period"; AWS's best
// practices recommend 30 s), so that every node's service proxy learns that the pod ended before another pod gets the
// address. A cooling address is not assigned, not withdrawn, and neither free nor warm. The period ends at since+period
// inclusive.

// DefaultCooling is the default period.
const DefaultCooling = 30 * time.Second

// Cool records that an address has cooled since a time, according to a stored record. An address that is held stays held,
// and one that the cloud does not list cools as well. One whose cooling has ended is free, and comes after those without a
// record. Such addresses must be passed in the order of their release.
func (a *Allocator[K]) Cool(addr netip.Addr, since, now time.Time) {
	if since.After(now) {
		since = now // if the wall clock was set back, still cool no longer than a period
	}
	e, known := a.entries[addr]
	switch {
	case !since.Add(a.period).After(now):
		a.rest(addr, since)
		return
	case !known:
		e = a.entry(addr)
	case e.state == used, e.state == cooling && !since.After(e.since):
		return
	}
	a.cool(e, since)
}

func (a *Allocator[K]) cool(e *entry[K], since time.Time) {
	a.unplace(e)
	e.state, e.since = cooling, since
	a.place(e)
}

// Expire frees the addresses whose cooling has ended, and returns how many it freed.
func (a *Allocator[K]) Expire(now time.Time) int {
	n := 0
	for ; a.cooling.Len() > 0; n++ {
		e := a.cooling.top()
		if e.since.Add(a.period).After(now) {
			break
		}
		if e.unit == nil || e.unit.large() && !e.isWithheld() {
			a.detach(e)
			delete(a.entries, e.addr)
			continue
		}
		e.freed = a.tick()
		a.move(e, free)
	}
	return n
}

// NextExpiry returns the end of the next cooling; false if no address cools.
func (a *Allocator[K]) NextExpiry() (time.Time, bool) {
	if a.cooling.Len() == 0 {
		return time.Time{}, false
	}
	return a.cooling.top().since.Add(a.period), true
}

func lessCooling[K comparable](x, y *entry[K]) bool {
	if !x.since.Equal(y.since) {
		return x.since.Before(y.since)
	}
	return x.addr.Less(y.addr)
}

// indexed is a priority queue whose members can be found, moved and removed in O(log n), because each
// knows its own position.
type indexed[T any] struct {
	items []T
	less  func(a, b T) bool
	pos   func(T) *int // the member's position; -1: not in the queue
}

// set puts x in its place, or removes it if in is false.
func (h *indexed[T]) set(x T, in bool) {
	switch p := h.pos(x); {
	case in && *p < 0:
		heap.Push(h, x)
	case in:
		heap.Fix(h, *p)
	case *p >= 0:
		heap.Remove(h, *p)
	}
}

// top returns the first member, which must exist.
func (h *indexed[T]) top() T { return h.items[0] }

// Len implements heap.Interface.
func (h *indexed[T]) Len() int { return len(h.items) }

// Less implements heap.Interface.
func (h *indexed[T]) Less(i, j int) bool { return h.less(h.items[i], h.items[j]) }

// Swap implements heap.Interface.
func (h *indexed[T]) Swap(i, j int) {
	h.items[i], h.items[j] = h.items[j], h.items[i]
	*h.pos(h.items[i]) = i
	*h.pos(h.items[j]) = j
}

// Push implements heap.Interface.
func (h *indexed[T]) Push(x any) {
	t := x.(T)
	*h.pos(t) = len(h.items)
	h.items = append(h.items, t)
}

// Pop implements heap.Interface.
func (h *indexed[T]) Pop() any {
	last := len(h.items) - 1
	t := h.items[last]
	var zero T
	h.items[last] = zero
	h.items = h.items[:last]
	*h.pos(t) = -1
	return t
}
