package port

import (
	"context"
	"net/netip"
	"time"

	"github.com/berthnet/berth/internal/attachment"
	"github.com/berthnet/berth/internal/source"
)

// None is the source of addresses of a node whose pods have NICs only: it leases
// nothing, and tells how the NICs are.
type None struct{ nics *NICs }

// NewNone returns it.
func NewNone(nics *NICs) None { return None{nics} }

var _ source.Source = None{}

// Annotations implements source.Source: those of NICs are looked at by NICs.
func (None) Annotations() []string { return nil }

// CheckWish implements source.Source.
func (None) CheckWish(source.Wish) error { return nil }

// Restore implements source.Source. A lease of when the node had another source is
// nobody's to hand out here.
func (None) Restore(source.Request, source.Lease) error { return nil }

// RestoreCooling implements source.Source.
func (None) RestoreCooling(netip.Addr, time.Time) {}

// Run implements source.Source.
func (None) Run(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// Kick implements source.Source.
func (None) Kick() {}

// Acquire implements source.Source: the lease has no address.
func (None) Acquire(context.Context, source.Request) (source.Lease, error) {
	return source.Lease{}, nil
}

// Why implements source.Source.
func (None) Why(attachment.Key) *source.Exhausted { return nil }

// Release implements source.Source.
func (None) Release(attachment.Key) {}

// Cancel implements source.Source.
func (None) Cancel(attachment.Key) {}

// CoolingPeriod implements source.Source.
func (None) CoolingPeriod() time.Duration { return 0 }

// Ready implements source.Source.
func (n None) Ready() error { return n.nics.Ready() }

// Snapshot implements source.Source.
func (n None) Snapshot() source.Snapshot {
	return n.nics.beside(source.Snapshot{Count: source.Count(nil)})
}

// Beside is a source of addresses beside which pods have NICs: it tells how these are,
// too.
type Beside struct {
	source.Source
	nics *NICs
}

// NewBeside wraps a source.
func NewBeside(of source.Source, nics *NICs) Beside { return Beside{of, nics} }

// Snapshot implements source.Source.
func (b Beside) Snapshot() source.Snapshot { return b.nics.beside(b.Source.Snapshot()) }

// beside adds to a source's view how the NICs are.
func (n *NICs) beside(s source.Snapshot) source.Snapshot {
	n.mu.Lock()
	defer n.mu.Unlock()
	s.Waiting += len(n.waiters)
	s.Conditions = append(s.Conditions[:len(s.Conditions):len(s.Conditions)], n.conditions()...)
	s.Detail = source.Details{s.Detail, n.count()}
	if err := n.book.anyTrouble(); err != nil && s.LastError == "" {
		s.LastError = "the Kubernetes API cannot be used: " + err.Error()
	}
	return s
}
