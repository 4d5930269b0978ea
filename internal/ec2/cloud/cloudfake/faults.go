package cloudfake

import (
	"slices"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
)

// Call is one call that was made.
type Call struct {
	Op  string // the method's name
	ENI string
	N   int // addresses or prefixes asked for
	At  time.Time
	Err error
}

// Fault makes calls fail. It is spent after Times calls, 0 meaning never.
type Fault struct {
	Op     string // the method's name; empty: any
	Action string // EC2's name of the action, which tells the families apart; empty: any
	ENI    string // the one that the call names; empty: any
	Times  int
	Err    error
	// After lets the call take effect before it fails: a lost reply.
	After bool
	hits  int
}

// Err makes an error of a class, for faults.
func Err(class cloud.Class, code string) error {
	return &cloud.Error{Class: class, Op: "fault", Code: code, Message: "injected"}
}

// Inject adds a fault.
func (f *Front) Inject(fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = append(f.faults, &fault)
}

// ClearFaults ends all faults.
func (f *Front) ClearFaults() { f.mu.Lock(); defer f.mu.Unlock(); f.faults = nil }

// fault is the one that a call meets; nil for none. f.mu is held.
func (f *Front) fault(q call) *Fault {
	for _, each := range f.faults {
		if (each.Op == "" || each.Op == q.method) && (each.Action == "" || each.Action == q.action.Action) &&
			(each.ENI == "" || each.ENI == q.eni) && (each.Times == 0 || each.hits < each.Times) {
			each.hits++
			return each
		}
	}
	return nil
}

// Calls lists the calls so far.
func (f *Front) Calls() []Call { f.mu.Lock(); defer f.mu.Unlock(); return slices.Clone(f.calls) }

// ResetCalls forgets the calls so far.
func (f *Front) ResetCalls() { f.mu.Lock(); defer f.mu.Unlock(); f.calls = nil }

// Count counts the calls of the named methods so far.
func (f *Front) Count(methods ...string) (n int) {
	for _, call := range f.Calls() {
		if slices.Contains(methods, call.Op) {
			n++
		}
	}
	return n
}
