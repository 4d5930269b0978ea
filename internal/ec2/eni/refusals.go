package eni

import (
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/retry"
)

// The node grows in no other way while a created ENI waits to be attached. So an ENI that EC2 keeps refusing to
// attach counts as surplus after a few attempts: it is deleted, and the plan continues without it.

const (
	attachTries = 3
	attachRetry = 2 * time.Second // between attempts, doubling

	attachRetryMost    = attachRetry << attachTries
	abandonedRetryMost = 30 * time.Minute // maximum pause before the next attachment after several abandoned ENIs
)

// refusals records the attachments and detachments that EC2 refused, and until when they are not retried. The trunk
// is separate: its failures keep no pod waiting. It belongs to the reconciler's goroutine.
type refusals struct {
	cfg            *Config
	view           *view
	pods           attachments // ENIs for pods
	trunk          attachments
	trunkBusyUntil time.Time // until when the trunk is not detached because it had branches
}

// attachments is the record of refused attachments.
type attachments struct {
	fullUntil time.Time // until when no ENI is attached because the instance is full
	abandoned int       // ENIs in a row that could not be attached
}

// full reports whether no ENI should be attached now.
func (a *attachments) full(now time.Time) bool { return a.fullUntil.After(now) }

// stuck reports whether several ENIs could not be attached, and no other is tried now.
func (a *attachments) stuck(now time.Time) bool { return a.abandoned > 1 && a.full(now) }

// abandon counts an ENI that is given up, and returns how long no other is attached: from the second one on, because
// the cause is not a single ENI.
func (a *attachments) abandon(wait time.Duration) (pause time.Duration) {
	if a.abandoned++; a.abandoned < 2 {
		return 0
	}
	return retry.Delay(wait, abandonedRetryMost, a.abandoned)
}

// due returns when the instance may have room again, or the trunk may be detachable.
func (f *refusals) due(now time.Time) time.Time {
	return retry.Earliest(now, f.pods.fullUntil, f.trunk.fullUntil, f.trunkBusyUntil)
}

// of returns the refusals for the kind of ENIs that a step attaches.
func (f *refusals) of(k plan.Kind) *attachments {
	if k == plan.AttachTrunk {
		return &f.trunk
	}
	return &f.pods
}

// attached resets the count of ENIs that could not be attached.
func (f *refusals) attached(k plan.Kind) { f.of(k).abandoned = 0 }

// instanceFull stops attaching ENIs for a while.
func (f *refusals) instanceFull(k plan.Kind, now time.Time) {
	f.of(k).fullUntil = now.Add(f.cfg.jitter(f.cfg.SlowRetry))
}

// attach records a failed attachment, and returns the wait before the next attempt if the refusal concerns this ENI.
// Limits, permissions and transport errors do not: another ENI would fail, too. Nor does a conflict soon after a lost
// reply: it may mean that the ENI is attached.
func (f *refusals) attach(k *known, by plan.Kind, class cloud.Class, now time.Time) (wait time.Duration, ok bool) {
	if class != cloud.Bug && class != cloud.Conflict || class == cloud.Conflict && f.view.fresh(k.attachReplyLost, now) {
		return 0, false
	}
	k.attachRefused()
	if k.refusals == attachTries {
		f.cfg.Logger.Warn("ENI cannot be attached: giving up and deleting it", "eni", k.ID, "tries", k.refusals)
		of := f.of(by)
		if pause := of.abandon(f.cfg.SlowRetry); pause > 0 {
			of.fullUntil = now.Add(f.cfg.jitter(pause))
		}
	}
	return f.cfg.jitter(retry.Delay(attachRetry, attachRetryMost, k.refusals-1)), true
}

// trunkBusy records that a trunk could not be detached because it has branches, if the error class means that for
// this kind of step. This is not a failure: the detachment is retried slowly until the branches are gone.
func (f *refusals) trunkBusy(k plan.Kind, class cloud.Class, now time.Time) bool {
	if k != plan.DetachTrunk || class != cloud.Conflict {
		return false
	}
	f.trunkBusyUntil = now.Add(f.cfg.jitter(f.cfg.SlowRetry))
	return true
}
