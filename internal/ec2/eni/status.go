package eni

import (
	"fmt"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
)

// Status is how a reconciler is doing.
type Status struct {
	Confirmed bool        // the cloud has been observed by this process
	LastError string      // the worst current trouble, and what to do about it; empty when healed
	Class     cloud.Class // of that trouble
	Err       error
	Kind      plan.Kind // the step it stopped
	Grows     bool      // that trouble keeps the node from growing

	NextTry time.Time // when what that trouble stopped is tried again at the latest; zero without trouble

	Available   int      // addresses that pods may have, used ones included
	Used        int      // of those
	Needed      int      // addresses that the policy wants beyond Available
	AtCapacity  bool     // the instance, its policy's caps or its subnets allow no more
	Outdated    int      // ENIs that serve pods and are not as configured
	OtherGroups []string // ENIs that are to have the primary's security groups, and have others
	Vanished    bool     // the cloud says that the instance does not exist or is terminated

	Trunk *Trunk // nil: none is wanted, and none is there, or that is not known yet

	InstanceType string // as the cloud says; empty while it has not been asked

	Shortage    string // why pods that wait, or a warm target, get nothing although nothing failed: a Reason
	Explanation string // the same in a sentence
}

// Status may be called at any time.
func (r *Reconciler) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

// report renews the status from the gates: growth's trouble matters most to pods.
func (r *Reconciler) report() {
	now := r.cfg.Clock.Now()
	s := Status{Confirmed: !r.confidence.confirmed.IsZero(), Vanished: r.instance.vanished}
	if r.instance.typeKnown {
		s.InstanceType = r.instance.typ
	}
	if b := r.retries.worst(); b != nil {
		g := gateOfKind[b.kind]
		s.Class, s.Err, s.Kind = b.class, b.err, b.kind
		s.Grows = g == gateGrow || g == gateSubnets || g == gateLimits || g == gateInstance
		s.LastError = fmt.Sprintf("%s: %v", b.kind, b.err)
		if hint := advice(b.class, b.kind); hint != "" {
			s.LastError += " (" + hint + ")"
		}
		s.NextTry = b.until
		if !s.NextTry.After(now) {
			s.NextTry = now.Add(r.wake(now))
		}
	}
	if s.Confirmed {
		e := r.evaluate(now)
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
			s.Trunk = r.trunkStatus(e.state)
			s.Shortage, s.Explanation = plan.Shortage(r.instance.limits, r.cfg.Policy, e.state)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status = s
}

// advice says what a person can do about a class of trouble.
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
