package portfake

import (
	"slices"
	"time"

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
	Skip  int    // calls that it lets through first
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

// Inject adds a fault.
func (p *Provider) Inject(f Fault) { p.set(func() { p.faults = append(p.faults, &f) }) }

// ClearFaults ends all faults.
func (p *Provider) ClearFaults() { p.set(func() { p.faults = nil }) }

// Calls lists the calls so far.
func (p *Provider) Calls() []Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.calls)
}

// ResetCalls forgets the calls so far.
func (p *Provider) ResetCalls() { p.set(func() { p.calls = nil }) }

// Count counts the calls of the named methods so far.
func (p *Provider) Count(ops ...string) (n int) {
	for _, c := range p.Calls() {
		if slices.Contains(ops, c.Op) {
			n++
		}
	}
	return n
}

// fault is the one that a call meets; nil for none. p.mu is held.
func (p *Provider) fault(op string) *Fault {
	for _, f := range p.faults {
		if f.Op != "" && f.Op != op || f.Times > 0 && f.hits >= f.Skip+f.Times {
			continue
		}
		if f.hits++; f.hits > f.Skip {
			return f
		}
	}
	return nil
}
