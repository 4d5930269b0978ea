package eni

import (
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/retry"
)

// The node grows in no other way before an ENI that was created is attached. So an ENI that EC2 keeps
// refusing to attach counts as surplus after a few attempts: it is deleted, and the plan goes on without it.

const (
	attachTries = 3
	attachRetry = 2 * time.Second // between them, doubling

	attachRetryMost    = attachRetry << attachTries
	abandonedRetryMost = 30 * time.Minute // before another is attached after several were abandoned
)

// refusals is what EC2 refused about the instance's attachments, and until when that is not tried
// again. A trunk is apart: trouble with it keeps no pod waiting. It belongs to the goroutine that
// reconciles.
type refusals struct {
	cfg            *Config
	view           *view
	pods           attachments // of ENIs for pods
	trunk          attachments
	trunkBusyUntil time.Time // until when the trunk is not detached, as it had branches
}

// attachments is what refused attachments tell of the instance.
type attachments struct {
	fullUntil time.Time // until when no ENI is attached, since the instance is full
	abandoned int       // ENIs in a row that could not be attached
}

// full reports whether no further ENI is to be attached now.
func (a *attachments) full(now time.Time) bool { return a.fullUntil.After(now) }

// stuck reports whether several ENIs could not be attached, and none is tried now.
func (a *attachments) stuck(now time.Time) bool { return a.abandoned > 1 && a.full(now) }

// abandon counts an ENI that is given up, and returns for how long no other is to be attached: from the
// second on, as it is not this ENI alone.
func (a *attachments) abandon(wait time.Duration) (pause time.Duration) {
	if a.abandoned++; a.abandoned < 2 {
		return 0
	}
	return retry.Delay(wait, abandonedRetryMost, a.abandoned)
}

// due returns when the instance may have room again, or the trunk may be detached.
func (f *refusals) due(now time.Time) time.Time {
	return retry.Earliest(now, f.pods.fullUntil, f.trunk.fullUntil, f.trunkBusyUntil)
}

// of returns the refusals of ENIs that a kind of step attaches.
func (f *refusals) of(k plan.Kind) *attachments {
	if k == plan.AttachTrunk {
		return &f.trunk
	}
	return &f.pods
}

// attached ends a row of ENIs that could not be attached.
func (f *refusals) attached(k plan.Kind) { f.of(k).abandoned = 0 }

// instanceFull has no ENI attached for a while.
func (f *refusals) instanceFull(k plan.Kind, now time.Time) {
	f.of(k).fullUntil = now.Add(f.cfg.jitter(f.cfg.SlowRetry))
}

// attach records a failed attachment, and returns how long to wait before the next try if the refusal
// is about this ENI. Limits, permissions and transport errors are not: another ENI would fare no
// better. Nor is a conflict soon after a lost reply: it may say that the ENI is attached.
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

// trunkBusy records that a trunk was not detached since it has branches, if that is what an error of a
// class means for a kind of step. It is no failure: the detachment is asked for again, slowly, until
// the branches are gone.
func (f *refusals) trunkBusy(k plan.Kind, class cloud.Class, now time.Time) bool {
	if k != plan.DetachTrunk || class != cloud.Conflict {
		return false
	}
	f.trunkBusyUntil = now.Add(f.cfg.jitter(f.cfg.SlowRetry))
	return true
}
