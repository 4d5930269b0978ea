package eni

import (
	"fmt"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/mac"
)

// Status is how a reconciler is doing.
type Status struct {
	Confirmed bool // the cloud has been observed by this process
	Trouble        // the worst current one; the zero value: none

	Available   int      // addresses that pods may have, used ones included
	Used        int      // of those
	Needed      int      // addresses that the policy wants beyond Available
	AtCapacity  bool     // the instance, its policy's caps or its subnets allow no more
	Outdated    int      // ENIs that serve pods and differ from the settings
	OtherGroups []string // ENIs that are to have the primary's security groups, and have others
	Vanished    bool     // the cloud says that the instance does not exist or is terminated

	Trunk *Trunk // nil: none is configured, and none is there, or that is not known yet

	InstanceType string // as the cloud says; empty until then

	Shortage    string // why waiting pods, or a warm target, get nothing although nothing failed: a Reason
	Explanation string // the same in a sentence
}

// Trouble is what keeps a reconciler from its goal.
type Trouble struct {
	LastError string // what failed, and what to do about it; empty: nothing
	Class     cloud.Class
	Err       error
	Kind      plan.Kind // the step that failed
	Grows     bool      // it keeps the node from growing
	NextTry   time.Time // when the step is tried again at the latest; zero without trouble
}

// Trunk is the state of a node's trunk.
type Trunk struct {
	ID          string // of the ENI; empty: none is attached
	MAC         mac.Addr
	DeviceIndex int
	Reason      string // why it is not there, or still is: one of package plan; empty: as configured
	Message     string // the same in a sentence
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

// report renews the status.
func (r *Reconciler) report() {
	now := r.cfg.Clock.Now()
	s := Status{Confirmed: !r.view.freshness.unconfirmed(), Trouble: r.retries.trouble(), Vanished: r.instance.vanished}
	if s.Err != nil && !s.NextTry.After(now) {
		s.NextTry = now.Add(r.wake(now))
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

// trouble returns the trouble that matters most to pods.
func (t *retries) trouble() Trouble {
	b := t.worst()
	if b == nil {
		return Trouble{}
	}
	g := activityOf[b.kind]
	out := Trouble{
		LastError: fmt.Sprintf("%s: %v", b.kind, b.err), Class: b.class, Err: b.err, Kind: b.kind, NextTry: b.until,
		Grows: g == activityGrow || g == activitySubnets || g == activityLimits || g == activityInstance,
	}
	if hint := advice(b.class, b.kind); hint != "" {
		out.LastError += " (" + hint + ")"
	}
	return out
}

// advice returns what a person can do about a class of trouble.
func advice(c cloud.Class, k plan.Kind) string {
	if k == plan.FindLimits && c == cloud.Bug {
		return "correct the instance type"
	}
	if k == plan.FindInstance {
		return "start the instance, or correct its ID"
	}
	switch c {
	case cloud.Throttled:
		return "the same call is made again; ask for a higher EC2 API rate if this lasts"
	case cloud.SubnetFull:
		return "free addresses in the subnet, or configure a further subnet"
	case cloud.LimitReached:
		return "use a larger instance type, or detach other ENIs"
	case cloud.Permission:
		return "allow the action to the role that Berth runs with"
	case cloud.Bug, cloud.Gone:
		return "check the configured subnets and security groups"
	case cloud.Transient, cloud.Unknown:
		return "is the EC2 endpoint reachable from here?"
	default:
		return ""
	}
}
