package portfake

import (
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/vpcport"
)

// Call is one call that was made.
type Call struct {
	Op  string // the method's name
	N   int    // ports asked for or listed
	At  time.Time
	Err error
}

// Fault makes calls fail. It is spent after Times calls, 0 meaning never.
type Fault struct {
	Op    string // the method's name; empty: any
	Skip  int    // matching calls that pass before the first one fails
	Times int
	Err   error
	// After lets the call take effect before it fails: a lost reply.
	After bool
	// Hang holds the call, before its effect or after it, until its context ends or
	// this is closed; nil: not.
	Hang <-chan struct{}
	hits int
}

// Err makes an error of a class, for faults.
func Err(class vpcport.Class) error {
	return &vpcport.Error{Class: class, Op: "fault", Status: 500, Message: "injected"}
}

// Front delays and fails calls before they take effect, and logs them.
type Front struct {
	clock   clock.Clock
	latency time.Duration
	atOnce  chan struct{} // a token for each call in progress; nil: any number

	mu     sync.Mutex // guards all below
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

// Calls lists the calls so far.
func (f *Front) Calls() []Call { f.mu.Lock(); defer f.mu.Unlock(); return slices.Clone(f.calls) }

// ResetCalls empties the log of calls.
func (f *Front) ResetCalls() { f.mu.Lock(); defer f.mu.Unlock(); f.calls = nil }

// Count counts the calls of the named methods so far.
func (f *Front) Count(ops ...string) (n int) {
	for _, c := range f.Calls() {
		if slices.Contains(ops, c.Op) {
			n++
		}
	}
	return n
}

// fault is the one that a call meets; nil for none.
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
