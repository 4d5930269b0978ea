package networkpolicy

import (
	"cmp"
	"context"
	"time"

	"github.com/berthnet/berth/internal/clock"
)

const (
	// settle is how long to wait for further changes of a burst by other software.
	settle = 50 * time.Millisecond
	// lookAgain is the delay before the kernel is watched again after a failure.
	lookAgain = 10 * time.Second
	// repairLog is the minimum interval between log lines about repairs, in case other software removes the table repeatedly.
	repairLog = time.Minute
)

// watch calls suspect when other software changes policies in the kernel, and at an interval, until ctx ends.
func watch(ctx context.Context, o Options, suspect func(what string)) {
	var changes <-chan string
	failed := false
	for ctx.Err() == nil {
		wait := o.Interval
		if changes == nil {
			var err error
			if changes, err = o.Kernel.Watch(ctx); err != nil && ctx.Err() == nil {
				wait = lookAgain
				if !failed {
					o.Log.Warn("watching the kernel's network policies, will try again; repairs happen at an interval", "err", err)
				}
			}
			failed = err != nil
		}
		select {
		case <-ctx.Done():
		case what, ok := <-changes:
			if !ok {
				changes, what = nil, interval
			}
			select {
			case <-ctx.Done():
			case <-o.Clock.After(settle):
			}
			select {
			case <-changes: // of the same burst
			default:
			}
			suspect(cmp.Or(what, interval))
		case <-after(o.Clock, wait):
			suspect(interval)
		}
	}
}

// after returns a channel that fires after wait; nil (never) if wait is zero.
func after(c clock.Clock, wait time.Duration) <-chan time.Time {
	if wait <= 0 {
		return nil
	}
	return c.After(wait)
}

// interval is the reason of a repair without an observed change.
const interval = "the table differed from what was applied"

// suspect schedules a check of the kernel.
func (e *Enforcer) suspect(what string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.foreign = what
	e.dirty.Set()
}

// repair schedules a complete apply if other software has changed the kernel's state.
func (e *Enforcer) repair() {
	e.mu.Lock()
	what := e.foreign
	e.foreign = ""
	e.mu.Unlock()
	if what == "" || !e.own.applied { // otherwise everything is applied anyway
		return
	}
	ofNode := what != interval
	if !ofNode {
		present, err := e.Kernel.Present()
		ofNode = !present && err == nil // after an error, the next interval checks again
	}
	if ofNode {
		e.Kernel.Forget()
	}
	if ofPods := e.insides.changed(); !ofNode && !ofPods {
		return
	}
	e.Metrics.repaired()
	now := e.Clock.Now()
	e.mu.Lock()
	e.rules = true
	news := e.record.repaired.IsZero() || now.Sub(e.record.repaired) >= repairLog
	if news {
		e.record.repaired = now
	}
	e.mu.Unlock()
	if news {
		e.Log.Warn("other software changed network policies in the kernel; restoring them", "what", what)
	}
}
