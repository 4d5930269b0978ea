package eni

import (
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/limits"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/retry"
)

// A trunk has no address that a pod or the node's daemon knows of. So it comes and goes
// without being published: nobody has to give anything of it back. What uses it are
// branches, and while it has such EC2 does not detach it.

// Trunk is how a node does for its trunk.
type Trunk struct {
	ID          string // of the ENI; empty: none is attached
	MAC         mac.Addr
	DeviceIndex int
	Reason      string // why it is not there, or still is: one of package plan; empty: all is as wanted
	Message     string // the same in a sentence
}

// trunk is what calls about the node's trunk told that listings do not.
type trunk struct {
	attachments           // refused ones
	busyUntil   time.Time // until when it is not detached: it had branches
	told        string    // the reason that was logged last
}

// due is when to try again what was refused.
func (t *trunk) due(now time.Time) time.Time {
	return retry.Earliest(now, t.attachments.due(now), t.busyUntil)
}

// attachmentsBy are what refusals told that are about the ENIs which a kind of step attaches.
func (r *Reconciler) attachmentsBy(k plan.Kind) *attachments {
	if k == plan.AttachTrunk {
		return &r.trunk.attachments
	}
	return &r.attachments
}

// wantedTrunk is what a plan is to know of the trunk besides the ENIs.
func (r *Reconciler) wantedTrunk(now time.Time) plan.Trunk {
	return plan.Trunk{
		Wanted: r.cfg.Trunk, Branches: r.cfg.Trunk && limits.Branches(r.instance.limitsOf) > 0,
		Refused: r.trunk.full(now), Busy: r.trunk.busyUntil.After(now),
	}
}

// mayWait tells whether a step about a trunk is given up for pods that come to wait.
// While some wait already nothing more can be done for them, and it is not.
func (r *Reconciler) mayWait(a plan.Action) bool {
	waiting, free := r.demand()
	return (a.Kind == plan.CreateTrunk || a.Kind == plan.DetachTrunk) && waiting <= free
}

// stillBusy takes a detachment that was refused as the trunk has branches. That is no
// failure: it is asked for again, slowly, until they are gone.
func (r *Reconciler) stillBusy(class cloud.Class, p *step, now time.Time) bool {
	if p.Kind != plan.DetachTrunk || class != cloud.Conflict {
		return false
	}
	r.trunk.busyUntil = now.Add(r.cfg.jitter(r.cfg.SlowRetry))
	return true
}

// trunkStatus tells of the trunk, by the state of a plan; nil: none is wanted, and none is there.
func (r *Reconciler) trunkStatus(s plan.State) *Trunk {
	var t Trunk
	for _, e := range s.ENIs {
		if e.Trunk && e.Ours && e.Phase == plan.Attached && (t.ID == "" || e.ID < t.ID) {
			t.ID, t.MAC, t.DeviceIndex = e.ID, mac.Addr(r.view.enis[e.ID].MAC), e.Index
		}
	}
	t.Reason, t.Message = plan.TrunkTrouble(r.instance.limits, r.cfg.Policy, s)
	if t.Reason != r.trunk.told {
		if r.trunk.told = t.Reason; t.Reason != "" {
			r.cfg.Logger.Info("trunk is not as wanted", "reason", t.Reason, "why", t.Message)
		}
	}
	if t.ID == "" && !r.cfg.Trunk {
		return nil
	}
	return &t
}
