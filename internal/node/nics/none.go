package nics

import (
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/none"
)

// None is the source of addresses of a node whose pods have NICs only: it leases
// nothing, and is ready when they are.
type None struct {
	none.Source
	nics *NICs
}

var _ source.Source = None{}

// NewNone returns it.
func NewNone(nics *NICs) None { return None{nics: nics} }

// Ready implements source.Source.
func (n None) Ready() error { return n.nics.Ready() }

// Describe implements part.Part.
func (n *NICs) Describe(s *source.Snapshot) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s.Waiting += n.waiters.Len()
	s.Conditions = append(s.Conditions[:len(s.Conditions):len(s.Conditions)], n.conditions()...)
	s.Detail = source.Details{s.Detail, n.count()}
	if err := n.observed.sync.Err(); err != nil && s.LastError == "" {
		s.LastError = "the Kubernetes API cannot be used: " + err.Error()
	}
}
