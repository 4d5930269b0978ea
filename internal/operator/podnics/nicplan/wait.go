package nicplan

import (
	"fmt"
	"time"

	"github.com/berthnet/berth/internal/vpcport"
)

const (
	// NodeFull is the interval at which a NIC checks whether its node has room for it.
	NodeFull = 2 * time.Second
	// Unscheduled is how long a NIC waits for its pod to be scheduled before its port is created without a host. A scheduler that
	// is not busy takes some milliseconds per pod.
	Unscheduled = 500 * time.Millisecond
	// UnscheduledMost limits that wait while the scheduler is busy with other pods.
	UnscheduledMost = 2 * time.Minute
)

// Constraints may forbid or delay a step. The zero value forbids and delays nothing.
type Constraints struct {
	Now time.Time
	// Closed says that the VPC's provider is not open.
	Closed bool
	// Claimed says that a user's PodNIC is to be assigned to a pod, which is not in its status yet. It must be recorded before
	// the port is bound for that pod.
	Claimed bool
	// Refused says that the NIC may not get a port.
	Refused bool
	// NeedsHost says that the provider creates no port without a host (vpcport.Traits).
	NeedsHost bool
	// Warm says that a warm port would do, and that one may be available.
	Warm bool
	// NodeFull says that the node has the maximum number of NICs.
	NodeFull bool
	// HeldUntil is when Desired.Held ends at the latest; zero if only the node's report ends it.
	HeldUntil time.Time
	// CoolUntil is how long the recorded port is kept after the NIC's end.
	CoolUntil time.Time
	// UsedBy is the PodNIC of this cluster that has the port; "" if there is none or it is the NIC's own.
	UsedBy string
	// Scheduling is what is known of the pod's scheduling.
	Scheduling Scheduling
}

// Scheduling says how long a NIC has waited for its pod's node.
type Scheduling struct {
	Pending bool      // whether the pod has no node
	Since   time.Time // since when a port is needed; zero if it is just now
	Placed  time.Time // when another pod of the VPC was last scheduled; zero if never
}

// Failure is the last failure of a NIC's calls, or of calls that several NICs share. It is zero if the last call succeeded.
type Failure struct {
	Class   vpcport.Class
	Message string
	Reason  string    // reason of the condition, if it differs from the class's
	Times   int       // successive failures of this class
	Until   time.Time // earliest time of the next attempt
}

// Attempts are the parts of a NIC's call history that determine when the next call may be made.
type Attempts struct {
	Failed    Failure
	Asked     Desired   // desired state at the time of the last call
	Looks     int       // successive looks without a clear result
	Polls     int       // polls since the port last changed
	NotBefore time.Time // earliest time of the next Look or Poll
}

// edited reports whether the NIC's desired state has changed so that waiting after the last failure is pointless: the NIC is no
// longer needed, or the change that a user had to make was made.
func (a Attempts) edited(d Desired) bool {
	if d.Over != a.Asked.Over {
		return true
	}
	return vpcport.PolicyOf(a.Failed.Class).Edit && fmt.Sprintf("%#v", d) != fmt.Sprintf("%#v", a.Asked) // compares all fields, and distinguishes nil from empty lists
}

// paced returns a step with the delay that applies.
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

// pacedCall works like paced for steps that call the provider.
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

// until returns when a call may be made.
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

// Deferred returns the step delayed: it is decided again after wait (0 means on the next change), or when a node's hold ends.
func (s Step) Deferred(wait time.Duration, d Desired, c Constraints) Step {
	if d.Held && !c.HeldUntil.IsZero() {
		if left := max(c.HeldUntil.Sub(c.Now), time.Millisecond); wait == 0 || left < wait {
			wait = left
		}
	}
	s.Waits, s.Wait = s.Kind != Rest, wait
	return s
}

// wait returns how long a new port still waits for its pod's node. Providers create many ports with their hosts in one call, but
// bind existing ports one by one: a port created too early costs a pod that second call, and a provider with thousands of them a
// hundred times as many calls. Waiting costs nothing, as both calls take the same time.
//
// It waits as long as other pods are scheduled, since the scheduler is then making progress. The interval grows with the time
// already waited, so that few NICs are checked often.
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
