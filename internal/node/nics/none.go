package nics

import (
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/none"
)

// None is the source of addresses of a node whose pods have NICs only: it leases
// nothing, and tells how the NICs are.
type None struct {
	none.Source
	nics *NICs
}

var _ source.Source = None{}

// NewNone returns it.
func NewNone(nics *NICs) None { return None{nics: nics} }

// Ready implements source.Source.
func (n None) Ready() error { return n.nics.Ready() }

// Snapshot implements source.Source.
func (n None) Snapshot() source.Snapshot {
	return n.nics.beside(n.Source.Snapshot())
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
	s.Waiting += n.waiters.Len()
	s.Conditions = append(s.Conditions[:len(s.Conditions):len(s.Conditions)], n.conditions()...)
	s.Detail = source.Details{s.Detail, n.count()}
	if err := n.observed.sync.Err(); err != nil && s.LastError == "" {
		s.LastError = "the Kubernetes API cannot be used: " + err.Error()
	}
	return s
}
