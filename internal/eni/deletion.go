package eni

import (
	"context"
	"time"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/eni/plan"
)

// No pod waits for an ENI's DeleteOnTermination. So the call that sets it yields
// to what other nodes lack, and is made beside the passes: while it waits for the
// rate limit its node goes on, and it keeps its place in the limiter's queue.

// deletionYields is how long a call that sets DeleteOnTermination yields. The
// ENI of an instance that ends before is left to the collection of orphans.
const deletionYields = 2 * time.Minute

// deletion is a call under way that sets an ENI's DeleteOnTermination.
type deletion struct {
	action     plan.Action
	attachment string
	on         bool
	start      time.Time
	done       chan error // its outcome; never blocks the sender
	drop       context.CancelFunc
}

// deletionPriority is the priority of a call that sets DeleteOnTermination, and
// how long it waits with that, when it has been due for so long: it yields for a
// while, and is then what was begun and is to be finished.
func deletionPriority(due, timeout time.Duration) (cloud.Priority, time.Duration) {
	if left := deletionYields - due; left > 0 {
		return 0, left
	}
	return cloud.Begun, timeout
}

// deletionsOf are the ENIs whose DeleteOnTermination a plan sets: those that it
// keeps.
func deletionsOf(actions []plan.Action) (ids []string) {
	leaves := map[string]bool{}
	for _, a := range actions {
		switch {
		case a.Kind == plan.Detach:
			leaves[a.ENI] = true
		case a.Kind == plan.KeepWithVM && !leaves[a.ENI]: // tidying is the last part of a plan
			ids = append(ids, a.ENI)
		}
	}
	return ids
}

// setDeletions begins the calls that a plan wants, and gives up those under way
// that it does not want any more.
func (r *Reconciler) setDeletions(ctx context.Context, actions []plan.Action, now time.Time) {
	wanted := map[string]bool{}
	for _, id := range deletionsOf(actions) {
		wanted[id] = true
		if r.deletions[id] == nil && !r.closed(gateRepair, now) {
			r.setDeletion(ctx, r.view.enis[id], now)
		}
	}
	for id, d := range r.deletions {
		if !wanted[id] {
			d.drop()
			delete(r.deletions, id)
			if k := r.view.enis[id]; k != nil {
				k.deletionDue = time.Time{}
			}
		}
	}
}

// setDeletion begins the call for one ENI.
func (r *Reconciler) setDeletion(ctx context.Context, k *known, now time.Time) {
	if k.deletionDue.IsZero() {
		k.deletionDue = now
	}
	ctx, drop := context.WithCancel(ctx)
	d := &deletion{
		action: plan.Action{Kind: plan.KeepWithVM, ENI: k.ID}, attachment: k.Attachment.ID, on: !r.cfg.KeepENIs,
		start: now, done: make(chan error, 1), drop: drop,
	}
	r.deletions[k.ID] = d
	due := k.deletionDue
	ended := context.AfterFunc(r.life, drop)
	r.cfg.Beside(func() {
		defer drop()
		defer ended()
		d.done <- around(plan.KeepWithVM, func() error { return r.askDeletion(ctx, d, due) })
	})
}

// askDeletion makes the call, more urgently once it has yielded for long enough.
// It touches nothing of the node.
func (r *Reconciler) askDeletion(ctx context.Context, d *deletion, due time.Time) error {
	for {
		priority, timeout := deletionPriority(r.cfg.Clock.Now().Sub(due), r.cfg.CallTimeout)
		call, cancel := context.WithTimeout(cloud.WithPriority(ctx, priority), timeout)
		err := r.cfg.Cloud.SetDeleteOnTermination(call, d.action.ENI, d.attachment, d.on)
		late := call.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil || !late || priority == cloud.Begun {
			return err
		}
	}
}

// takeDeletions takes the replies of the calls that have ended.
func (r *Reconciler) takeDeletions(ctx context.Context) {
	for id, d := range r.deletions {
		select {
		case err := <-d.done:
			delete(r.deletions, id)
			r.takeDeletion(ctx, d, err)
		default:
		}
	}
}

func (r *Reconciler) takeDeletion(ctx context.Context, d *deletion, err error) {
	r.told(d.action, err, d.start)
	now := r.cfg.Clock.Now()
	if err != nil {
		class := cloud.ClassOf(err)
		r.undo(ctx, &step{Action: d.action}, class, now)
		r.fail(gateRepair, plan.KeepWithVM, err, now, r.waitAfter(gateRepair, class))
		return
	}
	r.cfg.Logger.Info("step done", "step", d.action.String(), "took", now.Sub(d.start).String())
	r.heal(gateRepair)
	k := r.view.enis[d.action.ENI]
	if k == nil || k.phase() != plan.Attached || k.Attachment.ID != d.attachment {
		return
	}
	at := *k.Attachment
	at.DeleteOnTermination = d.on
	k.Attachment, k.replied, k.deletionDue = &at, now, time.Time{}
}
