package daemon

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/retry"
)

// nicKeeper keeps what is plugged as the records want it. A start leaves NICs of ready
// records to it, so that an Open vSwitch that is down holds no start up.
type nicKeeper struct {
	daemon  *Daemon
	changes *changes
	swept   bool // nothing of no record is left from before
	began   bool // ADDs may be under way
	failed  bool // in the last look: NICs could not be plugged again
	fails   int  // in how many looks at all, one after the other
}

func newNICKeeper(d *Daemon) *nicKeeper {
	return &nicKeeper{daemon: d, changes: newChanges(d, changing{
		wanted: func(rec attachment.Record) (any, bool) {
			wanted, differ := d.NICs.Wanted(rec)
			return asked(wanted), differ
		},
		change: d.changeNICs,
		done: func(rec attachment.Record, err error, news bool) {
			d.touchEgress(rec) // whose packets leave by them
			d.Metrics.countNICRepair(nicChanged, err)
			if news {
				d.Log.Warn("changing the NICs of a running pod, will try again", forLog(rec, "err", err)...)
			}
		},
	})}
}

// takeUp removes what is of no record, and tells of the records that there are. It is
// the end of a recovery.
func (k *nicKeeper) takeUp(ctx context.Context) {
	k.sweep(ctx)
	for _, rec := range k.daemon.Store.Records() {
		if rec.State == attachment.Ready {
			k.daemon.tellPlugged(rec)
		}
	}
}

// run looks at all NICs at once, when somebody changed something and at an interval, and
// has those of running pods changed, until ctx ends.
func (k *nicKeeper) run(ctx context.Context) {
	d := k.daemon
	defer k.changes.wait()
	k.began = true
	due := k.lookAtAll(ctx)
	for {
		var again <-chan time.Time
		if next := k.changes.begin(ctx); !next.IsZero() {
			again = d.Clock.After(next.Sub(d.Clock.Now()))
		}
		select {
		case <-ctx.Done():
			return
		case <-d.Clock.After(due.Sub(d.Clock.Now())):
			due = k.lookAtAll(ctx)
		case <-d.NICs.Changed():
			if !sleep(ctx, d.Clock.After(repairDebounce)) {
				return
			}
			if ports, all := d.NICs.Touched(); all {
				due = k.lookAtAll(ctx)
			} else if soon := k.lookAt(ctx, ports); soon.Before(due) && !soon.IsZero() {
				due = soon // never later, however often ports are touched
			}
		case <-d.NICs.News():
		case <-k.changes.ended:
		case <-again:
		}
	}
}

// lookAtAll is look, and tells when to look again: after longer and longer while NICs cannot
// be plugged again, which may be for good.
func (k *nicKeeper) lookAtAll(ctx context.Context) time.Time {
	wait := k.daemon.RepairInterval
	k.failed = false
	if !k.look(ctx) {
		wait = min(wait, againAfter)
	}
	if k.failed {
		wait = min(wait, retry.Delay(againAfter, wait, k.fails))
		k.fails++
	} else {
		k.fails = 0
	}
	return k.daemon.Clock.Now().Add(wait)
}

// lookAt is look for the attachments that have one of some ports, and tells when to look at
// all again for that; zero: it need not be.
func (k *nicKeeper) lookAt(ctx context.Context, ports []string) (soon time.Time) {
	k.failed = false
	all := true
	seen := map[attachment.Key]bool{}
	for _, port := range ports {
		rec, ok := k.daemon.Store.ByPort(port)
		if !ok || rec.State != attachment.Ready || seen[rec.Key] {
			continue
		}
		seen[rec.Key] = true
		looked, _ := k.heal(ctx, rec)
		all = all && looked
	}
	switch {
	case !all:
		return k.daemon.Clock.Now().Add(againAfter)
	case k.failed:
		return k.daemon.Clock.Now().Add(retry.Delay(againAfter, k.daemon.RepairInterval, k.fails))
	}
	return time.Time{}
}

// sleep waits for a moment, and tells whether ctx did not end before.
func sleep(ctx context.Context, moment <-chan time.Time) bool {
	select {
	case <-ctx.Done():
		return false
	case <-moment:
		return true
	}
}

// againAfter is when NICs are looked at again that could not be, as a call about their
// container was at work, and first when they could not be plugged again.
const againAfter = 2 * time.Second

// look plugs again what somebody took away, and removes what is of no record if
// that could not be done before. It tells whether it saw all NICs but those that an Open
// vSwitch which does not answer keeps from it: one look at it holds a container's lock for
// long, and its return is a change.
func (k *nicKeeper) look(ctx context.Context) (all bool) {
	all = true
	if !k.swept {
		k.sweep(ctx)
	}
	away := false
	for _, rec := range k.daemon.Store.Records() {
		if rec.State != attachment.Ready || len(rec.NICs) == 0 || ctx.Err() != nil || away && needsSwitch(rec) {
			continue
		}
		looked, unreachable := k.heal(ctx, rec)
		all, away = all && looked, away || unreachable
	}
	return all
}

// needsSwitch tells whether a NIC of an attachment is plugged into Open vSwitch.
func needsSwitch(rec attachment.Record) bool {
	return slices.ContainsFunc(rec.NICs, func(n attachment.NIC) bool {
		kind := plug.Kind(n.Plug.Type)
		return kind == plug.OVS || kind == plug.OVSHybrid
	})
}

// heal plugs the NICs of an attachment again, if one of them is not as recorded. It looks
// at nothing where a call about the container is at work: that may be an ADD which waits
// for long. away tells that Open vSwitch does not answer.
func (k *nicKeeper) heal(ctx context.Context, seen attachment.Record) (looked, away bool) {
	d := k.daemon
	unlock, ok := d.locks.try(seen.Key.ContainerID)
	if !ok {
		return false, false
	}
	defer unlock()
	if rec, ok := d.Store.Get(seen.Key); ok && rec.State == attachment.Ready {
		away = k.healHeld(ctx, rec)
	}
	return true, away
}

// healHeld is heal while the container's lock is held. The look ends with ctx; what is
// begun after it is finished all the same.
func (k *nicKeeper) healHeld(ctx context.Context, rec attachment.Record) (away bool) {
	d := k.daemon
	look, over := context.WithTimeout(ctx, kernelTimeout)
	defer over()
	differs := d.plugged(look, rec)
	switch {
	case differs == nil, ctx.Err() != nil:
		return false
	case errors.Is(differs, plug.ErrUnreachable):
		return true
	}
	if alive, err := d.netnsAlive(rec.Netns); !alive && err == nil {
		return false // the sweep's matter
	}
	_, err := d.again(ctx, rec, d.plug)
	d.Metrics.countNICRepair(nicAgain, err)
	if err != nil {
		d.Log.Warn("plugging NICs again, will try again", "attachment", rec.Key.String(), "was", differs, "err", err)
		k.failed = true
		return false
	}
	d.Metrics.repairs.WithLabelValues().Inc()
	d.touchEgress(rec)
	d.Log.Warn("plugged NICs again", "attachment", rec.Key.String(), "was", differs)
	return false
}

// sweep removes what is plugged and of no record.
func (k *nicKeeper) sweep(ctx context.Context) {
	d := k.daemon
	ctx, cancel := context.WithTimeout(ctx, kernelTimeout)
	defer cancel()
	damaged := d.quarantine.links()
	err := d.NICs.Sweep(ctx, func(hostLink, port string) bool {
		if port == "" && hostLink == "" {
			return k.began
		}
		rec, ok := d.Store.ByPort(port)
		return ok && rec.HostLink == hostLink || slices.Contains(damaged, hostLink)
	})
	if k.swept = err == nil; err != nil && ctx.Err() == nil {
		d.Log.Warn("removing NICs that no record has, will try again", "err", err)
	}
}
