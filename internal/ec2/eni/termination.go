package eni

import (
	"context"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
)

// No pod waits for an ENI's DeleteOnTermination. The call that sets it therefore yields to what other
// nodes lack, and no pass waits for it: while it waits for the rate limit, its node goes on, and the
// call keeps its place in the limiter's queue.

// deleteOnTerminationYields is for how long a call that sets DeleteOnTermination yields. If the
// instance ends before, its ENI is collected as an orphan.
const deleteOnTerminationYields = 2 * time.Minute

// terminations sets DeleteOnTermination by calls that no pass waits for. It belongs to the goroutine
// that reconciles; what its calls run in goroutines touches nothing of it.
type terminations struct {
	cfg      *Config
	view     *view
	observer *observer
	retries  *retries
	ended    context.Context             // cancels the calls
	calls    map[string]*terminationCall // in flight, by ENI
}

type terminationCall struct {
	action     plan.Action
	attachment string
	on         bool
	start      time.Time
	done       chan error // its outcome; never blocks the sender
	drop       context.CancelFunc
}

// deleteOnTerminationPriority returns the priority of a call that sets DeleteOnTermination and has been
// due for some time, and for how long it waits with that priority. It yields at first, and then goes
// before calls that begin something new.
func deleteOnTerminationPriority(due, timeout time.Duration) (cloud.Priority, time.Duration) {
	if left := deleteOnTerminationYields - due; left > 0 {
		return 0, left
	}
	return cloud.Begun, timeout
}

// deleteOnTerminationOf returns the ENIs whose DeleteOnTermination a plan sets and that it does not
// detach.
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

// set begins the calls that a plan needs, and cancels those in flight that it does not need any more.
func (t *terminations) set(ctx context.Context, actions []plan.Action, now time.Time) {
	needed := map[string]bool{}
	for _, id := range deleteOnTerminationOf(actions) {
		needed[id] = true
		if t.calls[id] == nil && !t.retries.blocked(activityRepair, now) {
			t.begin(ctx, t.view.enis[id], now)
		}
	}
	for id, c := range t.calls {
		if needed[id] {
			continue
		}
		c.drop()
		delete(t.calls, id)
		if k := t.view.enis[id]; k != nil {
			k.deletionNotDue()
		}
	}
}

// begin begins the call for one ENI.
func (t *terminations) begin(ctx context.Context, k *known, now time.Time) {
	due := k.deletionDue(now)
	ctx, drop := context.WithCancel(ctx)
	c := &terminationCall{
		action: plan.Action{Kind: plan.SetDeleteOnTermination, ENI: k.ID}, attachment: k.Attachment.ID, on: !t.cfg.KeepENIs,
		start: now, done: make(chan error, 1), drop: drop,
	}
	t.calls[k.ID] = c
	ended := context.AfterFunc(t.ended, drop)
	t.cfg.Fleet.Beside(func() {
		defer drop()
		defer ended()
		c.done <- change(plan.SetDeleteOnTermination, func() error { return c.ask(ctx, t.cfg, due) })
	})
}

// ask makes the call, with a higher priority once it has yielded for long enough. It touches nothing of
// the node.
func (c *terminationCall) ask(ctx context.Context, cfg *Config, due time.Time) error {
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

// take takes the replies of the calls that have ended.
func (t *terminations) take() {
	for id, c := range t.calls {
		select {
		case err := <-c.done:
			delete(t.calls, id)
			t.took(c, err)
		default:
		}
	}
}

func (t *terminations) took(c *terminationCall, err error) {
	t.cfg.acted(c.action, err, c.start)
	now := t.cfg.Clock.Now()
	if err != nil {
		t.observer.contradicted(cloud.ClassOf(err), false, now)
		t.retries.backOff(plan.SetDeleteOnTermination, err, now)
		return
	}
	t.cfg.Logger.Info("step done", "step", c.action.String(), "took", now.Sub(c.start).String())
	t.retries.succeed(activityRepair)
	k := t.view.enis[c.action.ENI]
	if k == nil || k.phase() != plan.Attached || k.Attachment.ID != c.attachment {
		return
	}
	k.deletionSet(c.on, now)
}
