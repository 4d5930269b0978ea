package daemon

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/tunnel"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/retry"
)

var _ = failpoint.Register("daemon.egress.recorded", "daemon.egress.changed")

// looksAtOnce is how many pods' namespaces are compared with their records at one moment.
const looksAtOnce = 4

// egressKeeper keeps what pods have of egress as the operator and the records want it. A
// start leaves ready records to it. Nothing tells of what somebody does in a pod's
// namespace, so it looks at an interval.
type egressKeeper struct {
	daemon  *Daemon
	changes *changes
	touched retry.Signal // due has more

	mu  sync.Mutex              // guards due, memory only
	due map[attachment.Key]bool // attachments whose kernel may not be as recorded
}

func newEgressKeeper(d *Daemon) *egressKeeper {
	k := &egressKeeper{daemon: d, touched: retry.NewSignal(), due: map[attachment.Key]bool{}}
	k.changes = newChanges(d, changing{wanted: k.wanted, change: k.change, done: k.done})
	return k
}

// takeUp tells of the records that there are. It is the end of a recovery.
func (k *egressKeeper) takeUp() {
	var ready []attachment.Record
	for _, rec := range k.daemon.Store.Records() {
		if rec.State == attachment.Ready {
			ready = append(ready, rec)
		}
	}
	k.daemon.Egress.TakeUp(ready)
}

// run looks at all pods at once and at an interval, and has changed what is to be other than
// it is, until ctx ends.
func (k *egressKeeper) run(ctx context.Context) {
	d := k.daemon
	defer k.changes.wait()
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
		case <-d.Egress.News():
		case <-k.touched:
		case <-k.changes.ended:
		case <-again:
		}
	}
}

// lookAtAll compares all pods with their records, and tells when to do so again.
func (k *egressKeeper) lookAtAll(ctx context.Context) time.Time {
	d := k.daemon
	k.lookAtKernel(ctx)
	wait := d.RepairInterval
	if !k.look(ctx) {
		wait = min(wait, againAfter)
	}
	return d.Clock.Now().Add(wait)
}

// lookAtKernel keeps the condition about what the kernel can do.
func (k *egressKeeper) lookAtKernel(ctx context.Context) {
	d := k.daemon
	look, over := context.WithTimeout(ctx, kernelTimeout)
	defer over()
	switch err := d.Egress.Supported(look); {
	case err == nil:
		d.conditions.set(ConditionEgress, true, "Supported", "")
	case ctx.Err() != nil:
	case errors.Is(err, tunnel.ErrNoFoU):
		d.conditions.set(ConditionEgress, false, "NoFoU", err.Error()+": pods that are to reach networks by an Egress cannot run on this node; others are not affected")
	default:
		d.conditions.set(ConditionEgress, false, "Unknown", err.Error())
	}
}

// look compares settled egress with the kernel, a few pods beside each other, and notes where
// that differs. It tells whether it saw all.
func (k *egressKeeper) look(ctx context.Context) (all bool) {
	var wg sync.WaitGroup
	turns := make(chan struct{}, looksAtOnce)
	var mu sync.Mutex // guards all
	all = true
	for _, rec := range k.daemon.Store.Records() {
		if rec.State != attachment.Ready || rec.Egress == nil || rec.Egress.State != attachment.EgressSetUp || k.isDue(rec.Key) || ctx.Err() != nil {
			continue
		}
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			looked := k.lookAt(ctx, rec.Key)
			mu.Lock()
			defer mu.Unlock()
			all = all && looked
		})
	}
	wg.Wait()
	return all
}

// lookAt compares one pod. It looks at nothing where a call about the container is at work.
func (k *egressKeeper) lookAt(ctx context.Context, key attachment.Key) (looked bool) {
	d := k.daemon
	unlock, ok := d.locks.try(key.ContainerID)
	if !ok {
		return false
	}
	defer unlock()
	rec, ok := d.Store.Get(key)
	if !ok || rec.State != attachment.Ready {
		return true
	}
	look, over := context.WithTimeout(ctx, kernelTimeout)
	defer over()
	if alive, err := d.netnsAlive(rec.Netns); !alive && err == nil {
		return true // the sweep's matter
	}
	if differs := d.egressDiffers(look, rec); differs != nil && ctx.Err() == nil {
		d.Log.Warn("a pod's egress is not as it was set up, setting it up again", forLog(rec, "was", differs)...)
		k.setDue(key)
	}
	return true
}

// touch has what a pod has of egress set up again, as its interfaces were.
func (d *Daemon) touchEgress(rec attachment.Record) {
	if d.egress != nil && rec.Egress != nil {
		d.egress.setDue(rec.Key)
	}
}

func (k *egressKeeper) setDue(key attachment.Key) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.due[key] = true
	k.touched.Set()
}

func (k *egressKeeper) isDue(key attachment.Key) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.due[key]
}

// notDue notes that an attachment is as recorded from now on, and tells whether it was due.
func (k *egressKeeper) notDue(key attachment.Key) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	was := k.due[key]
	delete(k.due, key)
	return was
}

// wanted is what a ready attachment is to have, and whether something is to be done for that.
func (k *egressKeeper) wanted(rec attachment.Record) (any, bool) {
	wanted, differ := k.daemon.Egress.Wanted(rec)
	if !differ {
		wanted = rec.Egress
	}
	unsettled := rec.Egress != nil && rec.Egress.State != attachment.EgressSetUp
	return settledEgress(wanted), differ || unsettled || k.isDue(rec.Key)
}

// change brings a ready attachment to the egress that it is to have by now: the pod is the
// client of other Egresses, these are others, or somebody changed what is in its namespace.
// The record says what is wanted before the kernel is touched, so that whoever starts after a
// crash goes on from there. The error is a Failure.
func (k *egressKeeper) change(ctx context.Context, key attachment.Key) error {
	d := k.daemon
	unlock, err := d.locks.lock(ctx, key.ContainerID)
	if err != nil {
		return err
	}
	defer unlock()
	due := k.notDue(key)
	rec, ok := d.Store.Get(key)
	if !ok || rec.State != attachment.Ready || d.followed(rec) {
		return nil
	}
	if alive, err := d.netnsAlive(rec.Netns); !alive && err == nil {
		return nil // the sweep's matter
	}
	kctx, cancel := kernelContext(ctx)
	defer cancel()
	if err := k.changeHeld(kctx, rec); err != nil {
		if due {
			k.setDue(key)
		}
		return err
	}
	return failpoint.Hit("daemon.egress.changed")
}

// changeHeld is change while the container's lock is held.
func (k *egressKeeper) changeHeld(ctx context.Context, rec attachment.Record) error {
	d := k.daemon
	if wanted, differ := d.Egress.Wanted(rec); differ {
		before := egressNames(rec)
		rec.Egress = changingEgress(wanted)
		if err := d.Store.Put(rec); err != nil {
			return recordFailure(err)
		}
		if err := failpoint.Hit("daemon.egress.recorded"); err != nil {
			return err
		}
		d.Log.Info("the egress of a running pod changes", forLog(rec, "before", before)...)
	}
	now, err := d.applyEgress(ctx, rec)
	if err != nil {
		return err
	}
	if rec.Egress != nil && rec.Egress.State != attachment.EgressSetUp {
		if err := d.Store.Put(now); err != nil {
			return recordFailure(err)
		}
	}
	d.Egress.SetUp(now)
	return nil
}

// done counts and tells how a change ended.
func (k *egressKeeper) done(rec attachment.Record, err error, news bool) {
	d := k.daemon
	d.Metrics.countEgressChange(err)
	if news {
		d.Log.Warn("setting up the egress of a running pod, will try again", forLog(rec, "err", err)...)
	}
}

// egressClients counts the ready attachments that are clients of Egresses, by state for
// metrics; nil for a daemon without egress.
func (d *Daemon) egressClients() map[string]int {
	if d.Egress == nil {
		return nil
	}
	count := map[string]int{"set-up": 0, "changing": 0}
	for _, rec := range d.Store.Records() {
		switch {
		case rec.State != attachment.Ready || rec.Egress == nil || len(rec.Egress.Egresses) == 0:
		case rec.Egress.State == attachment.EgressSetUp:
			count["set-up"]++
		default:
			count["changing"]++
		}
	}
	return count
}
