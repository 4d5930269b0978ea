package eni

import (
	"time"

	"github.com/berthnet/berth/internal/cloud"
)

// Nothing else grows before an ENI that is begun is attached. One that EC2
// refuses to attach, for whatever is wrong with it, must not keep a node from growing
// for ever: after a few tries it counts as surplus, which is deleted, and the
// plan goes on without it.

const (
	attachTries = 3
	attachRetry = 2 * time.Second // between them, doubling
)

// attachRefused takes a failed attachment, and tells how long to wait before
// the next try if the refusal is about this ENI. Those of limits, permissions
// and trouble on the way are not: another ENI would fare no better. Nor is a
// conflict soon after a lost reply: it may say that the ENI is attached.
func (r *Reconciler) attachRefused(k *known, class cloud.Class, now time.Time) (wait time.Duration, ok bool) {
	if class != cloud.Bug && class != cloud.Conflict || class == cloud.Conflict && r.view.fresh(k.lost, now) {
		return 0, false
	}
	k.refusals++
	if k.refusals == attachTries {
		r.cfg.Logger.Warn("ENI cannot be attached: it is given up and deleted", "eni", k.ID, "tries", k.refusals)
		if r.abandoned++; r.abandoned > 1 { // it is not this ENI alone: no further one for a while
			r.refusedAt = now.Add(r.cfg.jitter(min(r.cfg.SlowRetry<<min(r.abandoned, 10), 30*time.Minute)))
		}
	}
	return r.cfg.jitter(attachRetry << min(k.refusals-1, attachTries)), true
}
