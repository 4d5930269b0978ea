package fleet

import (
	"container/heap"
	"time"

	"github.com/berthnet/berth/internal/retry"
)

// schedule orders nodes by the time of their next pass. Fleet.mu guards it, and the times of members.
type schedule struct {
	wake retry.Signal // a pass is due sooner than the scheduler expects
	heap dueHeap
}

// next removes and returns the node that is due first if it is due now; otherwise nil and the time until it is.
func (s *schedule) next(now time.Time) (*member, time.Duration) {
	if len(s.heap) == 0 {
		return nil, time.Hour
	}
	if wait := s.heap[0].at.Sub(now); wait > 0 {
		return nil, wait
	}
	return heap.Pop(&s.heap).(*member), 0
}

// sooner schedules a pass of a node at the given time, or earlier.
func (s *schedule) sooner(m *member, at time.Time) {
	switch {
	case m.running:
		if !m.again || at.Before(m.againAt) {
			m.again, m.againAt = true, at
		}
	case m.index < 0:
		s.enqueue(m, at)
	case at.Before(m.at):
		m.at = at
		heap.Fix(&s.heap, m.index)
		s.stir(m)
	}
}

// enqueue adds a node that is not in the schedule.
func (s *schedule) enqueue(m *member, at time.Time) {
	m.at = at
	heap.Push(&s.heap, m)
	s.stir(m)
}

// stir wakes the scheduler if a node is now due first.
func (s *schedule) stir(m *member) {
	if m.index == 0 {
		s.wake.Set()
	}
}

// drop removes a node, if it is in the schedule.
func (s *schedule) drop(m *member) {
	if m.index >= 0 {
		heap.Remove(&s.heap, m.index)
	}
}

// dueHeap has the node that is due first at its root.
type dueHeap []*member

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements heap.Interface.
func (h *dueHeap) Push(x any) {
	m := x.(*member)
	m.index = len(*h)
	*h = append(*h, m)
}

// Pop implements heap.Interface.
func (h *dueHeap) Pop() any {
	old := *h
	m := old[len(old)-1]
	old[len(old)-1] = nil
	*h, m.index = old[:len(old)-1], -1
	return m
}
