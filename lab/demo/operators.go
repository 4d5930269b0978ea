package demo

import (
	"context"
	"errors"
	"os"
	"slices"

	"github.com/berthnet/berth/lab"
)

// operators are those of a lab with more than one. Only the proofs' goroutine uses it.
type operators struct {
	lab     *lab.Lab
	stopped []*lab.Operator // by isolate
}

// leader returns the operator that leads, or the next one that does.
func (s *operators) leader(ctx context.Context) (leader *lab.Operator) {
	await(ctx, "operators", func() {
		if leader = must(s.lab.Leader(ctx)); leader == nil {
			fail("none leads")
		}
	})
	return leader
}

// ready waits until every operator is ready. One that cannot keep its Lease exits, and the lab
// starts it again as a kubelet does.
func (s *operators) ready(ctx context.Context) {
	await(ctx, "operators", func() {
		for _, o := range s.lab.Operators() {
			_, err := o.Get(ctx, "/readyz")
			checkf(err, "%s", o.Name)
		}
	})
}

// isolate returns the operator that leads, with all others stopped until resume.
func (s *operators) isolate(ctx context.Context) *lab.Operator {
	for {
		s.ready(ctx)
		leader := s.leader(ctx)
		all := s.stopAllBut(leader)
		if now, err := s.lab.Leader(ctx); all && err == nil && now == leader {
			return leader
		}
		s.resume()
	}
}

// stopAllBut reports whether all others stopped. One that has just lost its Lease exits.
func (s *operators) stopAllBut(leader *lab.Operator) bool {
	all := true
	for _, o := range slices.DeleteFunc(slices.Clone(s.lab.Operators()), func(o *lab.Operator) bool { return o == leader }) {
		switch err := o.Pause(); {
		case err == nil:
			s.stopped = append(s.stopped, o)
		case errors.Is(err, os.ErrProcessDone) || !o.Running():
			all = false
		default:
			check(err)
		}
	}
	return all
}

// resume continues the stopped operators. A second call does nothing.
func (s *operators) resume() {
	var errs []error
	for _, o := range s.stopped {
		errs = append(errs, o.Resume())
	}
	s.stopped = nil
	check(errors.Join(errs...))
}

// revive starts an operator that was killed, unless the lab did after it lost its Lease.
func (s *operators) revive(o *lab.Operator) {
	if err := o.Start(); err != nil && !o.Running() {
		check(err)
	}
}
