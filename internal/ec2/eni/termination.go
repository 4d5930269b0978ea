package eni

import (
	"context"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
)

// No pod waits for an ENI's DeleteOnTermination. So the call that sets it yields
// to what other nodes lack, and is made beside the passes: while it waits for the
// rate limit its node goes on, and it keeps its place in the limiter's queue.

// deleteOnTerminationYields is how long a call that sets DeleteOnTermination yields. The
// ENI of an instance that ends before is left to the collection of orphans.
const deleteOnTerminationYields = 2 * time.Minute

// attributeCalls are the calls under way that set DeleteOnTermination, by ENI.
type attributeCalls map[string]*attributeCall

type attributeCall struct {
	action     plan.Action
	attachment string
	on         bool
	start      time.Time
	done       chan error // its outcome; never blocks the sender
	drop       context.CancelFunc
}

// deleteOnTerminationPriority is the priority of a call that sets DeleteOnTermination, and
// how long it waits with that, when it has been due for so long: it yields for a
// while, and is then what was begun and is to be finished.
func deleteOnTerminationPriority(due, timeout time.Duration) (cloud.Priority, time.Duration) {
	if left := deleteOnTerminationYields - due; left > 0 {
		return 0, left
	}
	return cloud.Begun, timeout
}

// deleteOnTerminationOf are the ENIs whose DeleteOnTermination a plan sets: those that it
// keeps.
func deleteOnTerminationOf(actions []plan.Action) (ids []string) {
	leaves := map[string]bool{}
	for _, a := range actions {
		switch {
		case a.Kind == plan.Detach:
			leaves[a.ENI] = true
		case a.Kind == plan.SetDeleteOnTermination && !leaves[a.ENI]: // tidying is the last part of a plan
			ids = append(ids, a.ENI)
		}
	}
	return ids
}

// setDeleteOnTermination begins the calls that a plan wants, and gives up those under way
// that it does not want any more.
func (r *Reconciler) setDeleteOnTermination(ctx context.Context, actions []plan.Action, now time.Time) {
	wanted := map[string]bool{}
	for _, id := range deleteOnTerminationOf(actions) {
		wanted[id] = true
		if r.attributeCalls[id] == nil && !r.retries.closed(gateRepair, now) {
			r.beginDeleteOnTermination(ctx, r.view.enis[id], now)
		}
	}
	for id, c := range r.attributeCalls {
		if !wanted[id] {
			c.drop()
			delete(r.attributeCalls, id)
			if k := r.view.enis[id]; k != nil {
				k.deleteOnTerminationDue = time.Time{}
			}
		}
	}
}

// beginDeleteOnTermination begins the call for one ENI.
func (r *Reconciler) beginDeleteOnTermination(ctx context.Context, k *known, now time.Time) {
	if k.deleteOnTerminationDue.IsZero() {
		k.deleteOnTerminationDue = now
	}
	ctx, drop := context.WithCancel(ctx)
	c := &attributeCall{
		action: plan.Action{Kind: plan.SetDeleteOnTermination, ENI: k.ID}, attachment: k.Attachment.ID, on: !r.cfg.KeepENIs,
		start: now, done: make(chan error, 1), drop: drop,
	}
	r.attributeCalls[k.ID] = c
	due := k.deleteOnTerminationDue
	ended := context.AfterFunc(r.life, drop)
	r.fleet.Beside(func() {
		defer drop()
		defer ended()
		c.done <- change(plan.SetDeleteOnTermination, func() error { return c.ask(ctx, &r.cfg, due) })
	})
}

// ask makes the call, more urgently once it has yielded for long enough. It
// touches nothing of the node.
func (c *attributeCall) ask(ctx context.Context, cfg *Config, due time.Time) error {
	for {
		priority, timeout := deleteOnTerminationPriority(cfg.Clock.Now().Sub(due), callTimeout)
		call, cancel := context.WithTimeout(cloud.WithPriority(ctx, priority), timeout)
		err := cfg.Cloud.SetDeleteOnTermination(call, c.action.ENI, c.attachment, c.on)
		late := call.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil || !late || priority == cloud.Begun {
			return err
		}
	}
}

// takeDeleteOnTermination takes the replies of the calls that have ended.
func (r *Reconciler) takeDeleteOnTermination(ctx context.Context) {
	for id, c := range r.attributeCalls {
		select {
		case err := <-c.done:
			delete(r.attributeCalls, id)
			r.tookDeleteOnTermination(ctx, c, err)
		default:
		}
	}
}

func (r *Reconciler) tookDeleteOnTermination(ctx context.Context, c *attributeCall, err error) {
	r.acted(c.action, err, c.start)
	now := r.cfg.Clock.Now()
	if err != nil {
		r.afterFailure(ctx, &step{Action: c.action}, cloud.ClassOf(err), now)
		r.retries.backOff(plan.SetDeleteOnTermination, err, now)
		return
	}
	r.cfg.Logger.Info("step done", "step", c.action.String(), "took", now.Sub(c.start).String())
	r.retries.succeed(gateRepair)
	k := r.view.enis[c.action.ENI]
	if k == nil || k.phase() != plan.Attached || k.Attachment.ID != c.attachment {
		return
	}
	at := *k.Attachment
	at.DeleteOnTermination = c.on
	k.Attachment, k.replied, k.deleteOnTerminationDue = &at, now, time.Time{}
}
