package cloud

import "context"

// Priority orders calls that wait for the same rate limit: the higher goes
// first, equal ones in the order in which they came. Calls without one have 0.
//
// The operator gives what it began for a node, and is to be finished before
// another node is begun, Begun; and what begins a node that node's deficit in
// addresses, so that the worst off begins first.
type Priority int

// Begun is above every deficit.
const Begun Priority = 1 << 20

type priorityKey struct{}

// WithPriority gives the calls made with the returned context a priority.
func WithPriority(ctx context.Context, p Priority) context.Context {
	return context.WithValue(ctx, priorityKey{}, p)
}

// PriorityOf is the priority of the calls made with ctx.
func PriorityOf(ctx context.Context) Priority {
	p, _ := ctx.Value(priorityKey{}).(Priority)
	return p
}
