package ipam

import "container/heap"

// indexed is a priority queue whose members can be found, moved and removed in O(log n), because each
// knows its own position.
type indexed[T any] struct {
	items []T
	less  func(a, b T) bool
	pos   func(T) *int // the member's position, -1 while outside
}

// set puts x in its place, or removes it when in is false.
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

// top returns the first member; there must be one.
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
