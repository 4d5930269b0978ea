package daemon

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/node/attachment"
)

// sweepInterval is how often attachments without a living sandbox are looked for.
const sweepInterval = 15 * time.Second

// sweepLoop releases, until ctx ends, what no DEL will come for.
func (d *Daemon) sweepLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.Clock.After(min(sweepInterval, max(d.NetnsGrace/2, time.Second))):
			d.sweep(ctx)
		}
	}
}

// sweep finishes what an ADD or DEL could not, and releases attachments whose
// network namespace has been gone for the grace period. A namespace that is
// only out of this process's sight must not cost a pod its network: besides,
// the runtime must not list the sandbox or, when it cannot be asked, the pod's
// link must be gone, which it is as soon as the kernel ends the namespace.
func (d *Daemon) sweep(ctx context.Context) {
	var gone []attachment.Record
	for _, rec := range d.Store.Records() {
		if rec.State != attachment.Ready {
			d.sweepHalfDone(ctx, rec)
			continue
		}
		alive, err := d.netnsAlive(rec.Netns)
		missing := !alive && err == nil
		if d.absent.note(rec.Key, missing, d.Clock.Now()) >= d.NetnsGrace && missing {
			gone = append(gone, rec)
		}
	}
	d.absent.forget(d.Store)
	d.sweepGone(ctx, gone)
}

// sweepHalfDone retries what failed before, unless a call about the container is at work:
// an ADD may wait for its NICs for long.
func (d *Daemon) sweepHalfDone(ctx context.Context, rec attachment.Record) {
	if d.Clock.Now().Sub(rec.Since) < kernelTimeout {
		return // most likely under way
	}
	unlock, ok := d.locks.try(rec.Key.ContainerID)
	if !ok {
		return
	}
	defer unlock()
	now, ok := d.Store.Get(rec.Key)
	if !ok || now.State == attachment.Ready || !now.Since.Equal(rec.Since) {
		return
	}
	if err := d.clear(ctx, now); err != nil {
		d.Log.Warn("finishing what was half done, will try again", "attachment", rec.Key.String(), "state", now.State, "err", err)
	}
}

// absences has since when namespaces have been missing.
type absences struct {
	mu    sync.Mutex // guards since
	since map[attachment.Key]time.Time
}

// note takes whether a namespace is missing now, and tells for how long it has been.
func (a *absences) note(key attachment.Key, missing bool, now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !missing {
		delete(a.since, key)
		return 0
	}
	if _, known := a.since[key]; !known {
		a.since[key] = now
	}
	return now.Sub(a.since[key])
}

// forget drops notes about attachments that are no more.
func (a *absences) forget(store *attachment.Store) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.since, func(key attachment.Key, _ time.Time) bool {
		_, ok := store.Get(key)
		return !ok
	})
}

// sweepGone releases those of the candidates, and of the damaged
// records, that nothing speaks for any more.
func (d *Daemon) sweepGone(ctx context.Context, gone []attachment.Record) {
	damaged := d.quarantine.all()
	if len(gone)+len(damaged) == 0 {
		return
	}
	inv, err := d.Kernel.Inventory(ctx)
	if err != nil {
		d.Log.Warn("listing the kernel's pod links", "err", err)
		return
	}
	inKernel := map[string]bool{}
	for _, l := range inv.Links {
		inKernel[l.Name] = true
	}
	listed := d.runtimeLists(ctx)
	for _, rec := range gone {
		// A pod of NICs alone has no link that would tell.
		if listed != nil && listed[rec.Key.ContainerID] || listed == nil && (inKernel[rec.HostLink] || rec.Lease.Empty()) {
			continue
		}
		if _, err := d.releaseIf(ctx, rec, "network namespace gone without a DEL"); err != nil {
			d.Log.Warn("releasing an attachment whose namespace is gone", "attachment", rec.Key.String(), "err", err)
		}
	}
	if len(damaged) == 0 {
		return
	}
	plugs := d.plugsOfDamaged(ctx)
	for _, q := range damaged {
		if inKernel[q.HostLink] || slices.Contains(plugs, q.HostLink) {
			continue
		}
		if err := d.releaseQuarantined(ctx, q); err != nil {
			d.Log.Warn("releasing what a damaged record stood for", "file", q.File, "err", err)
		}
	}
}
