package nicplan

import (
	"fmt"
	"time"

	"github.com/berthnet/berth/internal/vpcport"
)

const (
	// NodeFull is the interval in which a NIC checks whether its node has room for it.
	NodeFull = 2 * time.Second
	// Unscheduled is how long a NIC waits for its pod to be scheduled before its port is made
	// without a host: a scheduler that has room takes some milliseconds for a pod.
	Unscheduled = 500 * time.Millisecond
	// UnscheduledMost bounds that wait while the scheduler is busy with other pods.
	UnscheduledMost = 2 * time.Minute
)

// Constraints are what may forbid or delay a step at one moment. The zero value forbids and
// delays nothing.
type Constraints struct {
	Now time.Time
	// Closed says that the VPC's provider is not open.
	Closed bool
	// Claimed says that a user's PodNIC is to become a pod's, which its status does not say yet. It
	// does before the port is bound for that pod.
	Claimed bool
	// Refused says that the NIC may not get a port.
	Refused bool
	// NeedsHost says that the provider creates no port without a host (vpcport.Traits).
	NeedsHost bool
	// Warm says that a warm port would do, and one may be left.
	Warm bool
	// NodeFull says that the node has as many NICs as it may.
	NodeFull bool
	// HeldUntil is when Desired.Held ends at the latest; zero: only when the node says so.
	HeldUntil time.Time
	// CoolUntil is until when the recorded port is kept after the NIC's end.
	CoolUntil time.Time
	// UsedBy is the PodNIC of this cluster that has the port; empty: none, or the NIC itself.
	UsedBy string
	// Scheduling is what is known of the pod's scheduling.
	Scheduling Scheduling
}

// Scheduling is how long a NIC has waited for its pod's node.
type Scheduling struct {
	Pending bool      // the pod has no node
	Since   time.Time // since when a port is to be made; zero: since now
	Placed  time.Time // when another pod of the VPC last got a node; zero: never
}

// Failure is the last failure of a NIC's calls, or of calls that several NICs share. The zero
// value: the last call succeeded.
type Failure struct {
	Class   vpcport.Class
	Message string
	Reason  string    // of the condition, where it is not that of the class
	Times   int       // of this class in a row
	Until   time.Time // before which it is not tried again
}

// Attempts are what a NIC's calls so far say about when the next may be made.
type Attempts struct {
	Failed    Failure
	Asked     Desired   // with what the last call was made
	Looks     int       // in a row that did not settle what there is
	Polls     int       // since the port last changed
	NotBefore time.Time // of the next Look or Poll
}

// edited reports whether the NIC's desired state has changed in a way that makes a wait after the
// last failure pointless: it is not needed any more, or somebody had to change something and did.
func (a Attempts) edited(d Desired) bool {
	if d.Over != a.Asked.Over {
		return true
	}
	return vpcport.PolicyOf(a.Failed.Class).Edit && fmt.Sprintf("%#v", d) != fmt.Sprintf("%#v", a.Asked) // all fields, nil lists apart from empty ones
}

// paced is a step with what it has to wait for.
func paced(s Step, d Desired, o Observed, c Constraints, a Attempts) Step {
	switch s.Kind {
	case Keep, Record, Forget, Rename:
		return s
	case Rest:
		if c.NodeFull {
			s.Wait = NodeFull
		}
		return s.Deferred(s.Wait, d, c)
	case Impossible:
		if a.Failed.Message == s.Why && c.Now.Before(a.Failed.Until) {
			return s.Deferred(a.Failed.Until.Sub(c.Now), d, c)
		}
		return s
	}
	return pacedCall(s, d, o, c, a)
}

// pacedCall is paced for steps that call the provider.
func pacedCall(s Step, d Desired, o Observed, c Constraints, a Attempts) Step {
	cools := c.CoolUntil.Sub(c.Now)
	switch {
	case c.Closed:
		return s.Deferred(0, d, c)
	case c.Refused && s.Takes(o.Recorded):
		return s.Deferred(vpcport.PolicyOf(vpcport.Invalid).Last, d, c)
	case d.Over && s.Kind == Delete && s.Port == o.Recorded && cools > 0:
		return s.Deferred(cools, d, c)
	case s.Kind == Create && c.NeedsHost && d.Port.Host == "":
		return s.Deferred(0, d, c)
	case s.Kind == Create && c.Warm:
		return Step{Kind: Take}
	}
	if s.Kind == Create && c.Scheduling.Pending {
		if wait := c.Scheduling.wait(c.Now); wait > 0 {
			s.Waits, s.Wait, s.Quiet = true, wait, true
			return s
		}
	}
	if wait := a.until(s, d).Sub(c.Now); wait > 0 {
		return s.Deferred(wait, d, c)
	}
	return s
}

// until is when a call may be made.
func (a Attempts) until(s Step, d Desired) time.Time {
	until := a.Failed.Until
	if a.edited(d) {
		until = time.Time{}
	}
	if s.Kind == Poll || s.Kind == Look && a.Looks > 0 {
		until = Later(until, a.NotBefore)
	}
	return until
}

// Deferred is the step put off: it is decided on again after wait (0: when something changes), or
// when a node's hold ends.
func (s Step) Deferred(wait time.Duration, d Desired, c Constraints) Step {
	if d.Held && !c.HeldUntil.IsZero() {
		if left := max(c.HeldUntil.Sub(c.Now), time.Millisecond); wait == 0 || left < wait {
			wait = left
		}
	}
	s.Waits, s.Wait = s.Kind != Rest, wait
	return s
}

// wait is how long a new port waits for its pod's node; 0: no longer. Providers make many ports in
// one call, with their hosts, but bind an existing port in a call of its own: a port made too early
// costs a pod that second call, and a provider with thousands of them a hundred times as many.
// Waiting loses nothing, as either call takes as long.
//
// It waits as long as other pods get nodes, since the scheduler is at work then. So that few NICs are
// looked at often, the wait grows with the time that it has lasted.
func (s Scheduling) wait(now time.Time) time.Duration {
	since := s.Since
	if since.IsZero() {
		since = now
	}
	last := since.Add(UnscheduledMost)
	due := Later(since, s.Placed).Add(Unscheduled)
	if due.After(last) {
		due = last
	}
	if !now.Before(due) {
		return 0
	}
	return max(due.Sub(now), min(now.Sub(since)/2, last.Sub(now)))
}

// Later returns the later of two times.
func Later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
