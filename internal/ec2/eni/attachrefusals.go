package eni

import (
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/retry"
)

// Nothing else grows before an ENI that is begun is attached. One that EC2
// refuses to attach, for whatever is wrong with it, must not keep a node from growing
// for ever: after a few tries it counts as surplus, which is deleted, and the
// plan goes on without it.

const (
	attachTries = 3
	attachRetry = 2 * time.Second // between them, doubling

	attachRetryMost    = attachRetry << attachTries
	abandonedRetryMost = 30 * time.Minute // before another is attached when several were given up
)

// attachments is what refused attachments tell of the instance.
type attachments struct {
	fullUntil time.Time // until when no ENI is attached: the cloud said the instance is full
	abandoned int       // ENIs in a row that could not be attached
}

// full tells whether no further ENI is to be attached now.
func (a *attachments) full(now time.Time) bool { return a.fullUntil.After(now) }

// stuck tells whether several ENIs could not be attached, and none is tried now.
func (a *attachments) stuck(now time.Time) bool { return a.abandoned > 1 && a.full(now) }

// abandon counts an ENI that is given up, and tells for how long no other is to
// be attached: after the second, as it is not this ENI alone.
func (a *attachments) abandon(wait time.Duration) (pause time.Duration) {
	if a.abandoned++; a.abandoned < 2 {
		return 0
	}
	return retry.Delay(wait, abandonedRetryMost, a.abandoned)
}

// due is when the instance may have room again.
func (a *attachments) due(now time.Time) time.Time { return retry.Earliest(now, a.fullUntil) }

// attachRefused takes a failed attachment, and tells how long to wait before
// the next try if the refusal is about this ENI. Those of limits, permissions
// and trouble on the way are not: another ENI would fare no better. Nor is a
// conflict soon after a lost reply: it may say that the ENI is attached.
func (r *Reconciler) attachRefused(k *known, by plan.Kind, class cloud.Class, now time.Time) (wait time.Duration, ok bool) {
	if class != cloud.Bug && class != cloud.Conflict || class == cloud.Conflict && r.view.fresh(k.attachReplyLost, now) {
		return 0, false
	}
	k.refusals++
	if k.refusals == attachTries {
		r.cfg.Logger.Warn("ENI cannot be attached: it is given up and deleted", "eni", k.ID, "tries", k.refusals)
		of := r.attachmentsBy(by)
		if pause := of.abandon(r.cfg.SlowRetry); pause > 0 {
			of.fullUntil = now.Add(r.cfg.jitter(pause))
		}
	}
	return r.cfg.jitter(retry.Delay(attachRetry, attachRetryMost, k.refusals-1)), true
}
