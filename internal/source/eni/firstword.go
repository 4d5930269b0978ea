package eni

import (
	"context"
	"time"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/eni"
	"github.com/berthnet/berth/internal/eni/plan"
)

// The supplier is the authority on what the node owns, and the stored inventory
// may be old: someone may have taken an address while no daemon ran. So after
// a start no address is handed out before the supplier has told what is there,
// or has failed to, or has had firstWordWait to do so.
const firstWordWait = 3 * time.Second

// trustFile ends the wait for the supplier's first word when it takes too long.
func (s *Source) trustFile(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-s.clock.After(firstWordWait):
		s.Prove()
	}
}

// Prove lets the inventory at hand be served: the supplier has tried and has
// nothing newer.
func (s *Source) Prove() {
	s.mu.Lock()
	unproven := s.unproven
	s.mu.Unlock()
	if !unproven {
		return
	}
	// Said before the first address goes out.
	s.log.Warn("giving out addresses by the stored inventory: nobody has confirmed it since the start")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unproven = false
	s.serve(s.clock.Now())
}

// firstWord is the reconciler's observer: it listens for an observation that
// failed, and passes everything on.
type firstWord struct {
	s    *Source
	next eni.Observer // nil: none
}

// Acted implements eni.Observer.
func (f *firstWord) Acted(a plan.Action, class cloud.Class, err error, took time.Duration) {
	if a.Kind == plan.Observe && err != nil {
		f.s.Prove()
	}
	if f.next != nil {
		f.next.Acted(a, class, err, took)
	}
}

// Reconciled implements eni.Observer.
func (f *firstWord) Reconciled(took time.Duration) {
	if f.next != nil {
		f.next.Reconciled(took)
	}
}
