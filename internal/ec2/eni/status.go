package eni

import (
	"fmt"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/mac"
)

// Status is the status of a reconciler.
type Status struct {
	Confirmed bool // the cloud has been observed by this process
	Trouble        // the most severe failure; zero if there is none

	Available   int      // addresses for pods, including used ones
	Used        int      // used addresses
	Needed      int      // addresses that the policy requires beyond Available
	AtCapacity  bool     // the instance, the policy's caps or the subnets allow no more
	Outdated    int      // ENIs that serve pods and differ from the settings
	OtherGroups []string // ENIs that should have the primary's security groups, but have others
	Vanished    bool     // the instance does not exist, or is terminated, according to the cloud

	Trunk *Trunk // nil if none is configured and none exists, or if this is not yet known

	InstanceType string // as reported by the cloud; empty until then

	Shortage    string // a Reason why waiting pods or a warm target get no addresses although nothing failed
	Explanation string // Shortage as a sentence
}

// Trouble describes what keeps a reconciler from its goal.
type Trouble struct {
	LastError string // failure and remedy; empty if nothing failed
	Class     cloud.Class
	Err       error
	Kind      plan.Kind // the step that failed
	Grows     bool      // the failure keeps the node from growing
	held      bool      // nothing failed: the call waits for the rate limit

	// NextTry is the latest time of the next attempt. It is zero without a failure, while the call waits for the rate limit, and
	// if only an event leads to another attempt.
	NextTry time.Time
}

// Trunk is the state of a node's trunk.
type Trunk struct {
	ID          string // ENI ID; empty if none is attached
	MAC         mac.Addr
	DeviceIndex int
	Reason      string // a Reason of package plan why it is missing or still present; empty if as configured
	Message     string // Reason as a sentence
}

// reporter keeps the status for other goroutines.
type reporter struct {
	mu     sync.Mutex // guards status
	status Status
}

// Status may be called at any time, by any goroutine.
func (r *Reconciler) Status() Status {
	r.status.mu.Lock()
	defer r.status.mu.Unlock()
	return r.status.status
}

// report updates the status.
func (r *Reconciler) report() {
	now := r.cfg.Clock.Now()
	s := Status{Confirmed: !r.view.freshness.unconfirmed(), Trouble: r.retries.trouble(), Vanished: r.instance.vanished}
	if s.held {
		s.NextTry = time.Time{}
	} else if s.Err != nil && !s.NextTry.After(now) {
		s.NextTry = time.Time{}
		if wait := r.wake(now); wait < idle {
			s.NextTry = now.Add(wait)
		}
	}
	if r.instance.typeKnown {
		s.InstanceType = r.instance.typ
	}
	if s.Confirmed {
		e := r.planning.evaluate(now)
		d := e.plan
		s.Available, s.Used = d.Available, d.Used
		for _, o := range e.state.ENIs {
			if o.Outdated && o.Phase == plan.Attached {
				s.Outdated++
			}
			if o.OtherGroups && o.Phase == plan.Attached {
				s.OtherGroups = append(s.OtherGroups, o.ID)
			}
		}
		if r.instance.limitsKnown() {
			s.Needed, s.AtCapacity = d.Needed, d.AtCapacity
			s.Trunk = r.planning.trunk(e.state)
			s.Shortage, s.Explanation = plan.Shortage(r.instance.limits, r.cfg.Policy, e.state)
		}
	}
	r.status.mu.Lock()
	defer r.status.mu.Unlock()
	r.status.status = s
}

// trouble returns the failure that affects pods most.
func (t *retries) trouble() Trouble {
	b := t.worst()
	if b == nil {
		return Trouble{}
	}
	g := activityOf[b.kind]
	out := Trouble{
		LastError: fmt.Sprintf("%s: %v", b.kind, b.err), Class: b.class, Err: b.err, Kind: b.kind, NextTry: b.until, held: b.held,
		Grows: g == activityGrow || g == activitySubnets || g == activityLimits || g == activityInstance,
	}
	if hint := advice(b.class, b.kind); hint != "" {
		out.LastError += " (" + hint + ")"
	}
	return out
}

// advice returns the remedy for a class of failures.
func advice(c cloud.Class, k plan.Kind) string {
	if k == plan.FindLimits && c == cloud.Bug {
		return "correct the instance type"
	}
	if k == plan.FindInstance {
		return "start the instance, or correct its ID"
	}
	switch c {
	case cloud.Throttled:
		return "retrying the same call; request a higher EC2 API rate limit if this persists"
	case cloud.SubnetFull:
		return "free addresses in the subnet, or configure a further subnet"
	case cloud.LimitReached:
		return "use a larger instance type, or detach other ENIs"
	case cloud.Permission:
		return "allow the action in the IAM role that Berth uses"
	case cloud.Bug, cloud.Gone:
		return "check the configured subnets and security groups"
	case cloud.Transient, cloud.Unknown:
		return "check that the EC2 endpoint is reachable"
	default:
		return ""
	}
}
