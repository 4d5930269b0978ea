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
func (c *Cloud) Inject(f Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, &f)
}

// ClearFaults ends all faults.
func (c *Cloud) ClearFaults() { c.mu.Lock(); defer c.mu.Unlock(); c.faults = nil }

// fault is the one that a call meets; nil for none. c.mu is held.
func (c *Cloud) fault(q call) *Fault {
	for _, f := range c.faults {
		if (f.Op == "" || f.Op == q.method) && (f.Action == "" || f.Action == q.action.Action) &&
			(f.ENI == "" || f.ENI == q.eni) && (f.Times == 0 || f.hits < f.Times) {
			f.hits++
			return f
		}
	}
	return nil
}

// Calls lists the calls so far.
func (c *Cloud) Calls() []Call { c.mu.Lock(); defer c.mu.Unlock(); return slices.Clone(c.calls) }

// ResetCalls forgets the calls so far.
func (c *Cloud) ResetCalls() { c.mu.Lock(); defer c.mu.Unlock(); c.calls = nil }

// Count counts the calls of the named methods so far.
func (c *Cloud) Count(methods ...string) (n int) {
	for _, call := range c.Calls() {
		if slices.Contains(methods, call.Op) {
			n++
		}
	}
	return n
}
