package portfake

import (
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/vpcport"
)

// Call is a call that was made.
type Call struct {
	Op  string // the method's name
	N   int    // number of ports requested or listed
	At  time.Time
	Err error
}

// Fault makes calls fail. It is removed after Times calls; 0: never.
type Fault struct {
	Op    string // the method's name; empty: any
	Skip  int    // matching calls that pass before the first failure
	Times int
	Err   error
	// After lets the call take effect before it fails, like a lost reply.
	After bool
	// Hang blocks the call, before or after its effect, until its context ends or this channel is closed; nil: no blocking.
	Hang <-chan struct{}
	hits int
}

// Err returns an error of a class, for faults.
func Err(class vpcport.Class) error {
	return &vpcport.Error{Class: class, Op: "fault", Status: 500, Message: "injected"}
}

// Front delays and fails calls before they take effect, and logs them.
type Front struct {
	clock   clock.Clock
	latency time.Duration
	atOnce  chan struct{} // one token per call in flight; nil: no limit

	mu     sync.Mutex // guards the fields below
	faults []*Fault
	calls  []Call
}

// Inject adds a fault.
func (f *Front) Inject(fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = append(f.faults, &fault)
}

// ClearFaults removes all faults.
func (f *Front) ClearFaults() { f.mu.Lock(); defer f.mu.Unlock(); f.faults = nil }

// Calls returns the calls so far.
func (f *Front) Calls() []Call { f.mu.Lock(); defer f.mu.Unlock(); return slices.Clone(f.calls) }

// ResetCalls clears the log of calls.
func (f *Front) ResetCalls() { f.mu.Lock(); defer f.mu.Unlock(); f.calls = nil }

// Count returns the number of calls of the named methods so far.
func (f *Front) Count(ops ...string) (n int) {
	for _, c := range f.Calls() {
		if slices.Contains(ops, c.Op) {
			n++
		}
	}
	return n
}

// fault returns the fault that applies to a call, or nil.
func (f *Front) fault(op string) *Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, each := range f.faults {
		if each.Op != "" && each.Op != op || each.Times > 0 && each.hits >= each.Skip+each.Times {
			continue
		}
		if each.hits++; each.hits > each.Skip {
			return each
		}
	}
	return nil
}
