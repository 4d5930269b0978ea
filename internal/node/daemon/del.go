package daemon

import (
	"context"
	"errors"
	"fmt"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/node/attachment"
)

var _ = failpoint.Register(
	"daemon.del.marked", "daemon.del.cooling", "daemon.del.detached", "daemon.del.unrecorded", "daemon.del.released",
)

// del removes an attachment in any state. An unknown key is not an error. A waiting ADD of the same key
// fails immediately.
func (a *attachments) del(ctx context.Context, key attachment.Key) error {
	end := a.acquirer.waits.del(key)
	unlock, err := a.locks.lock(ctx, key.ContainerID)
	end()
	if err != nil {
		return err
	}
	defer unlock()
	rec, ok := a.store.Get(key)
	switch {
	case !ok:
		return a.unlessHeldBack(key, a.quarantine.del(ctx, key))
	case rec.State == attachment.Pending:
		return a.undo(ctx, rec)
	case a.parts.linger(rec):
		return a.unlessHeldBack(key, a.releaseLater(ctx, rec))
	default:
		return a.unlessHeldBack(key, a.release(ctx, rec, "DEL"))
	}
}

// release removes an attachment. The caller holds the container's lock. The record becomes releasing
// first, and the cooling records are on disk before the pod loses its routes, so that the next start can finish
// a release that a crash interrupted, with the address still withheld. The link is removed after the
// reply; if the daemon stops first, the next start removes it. Without space for cooling records the
// error is a heldBack.
func (a *attachments) release(ctx context.Context, rec attachment.Record, why string) error {
	return a.startRelease(ctx, rec, func(ctx context.Context, rec attachment.Record, full error) error {
		return a.releaseNow(ctx, rec, why, full)
	})
}

// releaseLater is release for an attachment whose parts linger: after the reply the reaper removes the parts and then the
// record, which withholds addresses and ports until then. If the daemon stops first, the next start does so.
func (a *attachments) releaseLater(ctx context.Context, rec attachment.Record) error {
	return a.startRelease(ctx, rec, func(ctx context.Context, rec attachment.Record, full error) error {
		if full != nil {
			return a.releaseNow(ctx, rec, "DEL", full)
		}
		if err := a.wiring.detach(ctx, rec); err != nil {
			return err
		}
		a.reaper.addFinish(rec.HostLink, rec.Netns, func(ctx context.Context) error { return a.finish(ctx, rec) })
		return nil
	})
}

// startRelease marks the record as releasing, writes the cooling records, and calls rest with the marked record and the
// error of cooling records for which there was no space. It does nothing more if the reaper has released the attachment.
func (a *attachments) startRelease(ctx context.Context, rec attachment.Record, rest func(context.Context, attachment.Record, error) error) error {
	kctx, cancel := kernelContext(ctx)
	defer cancel()
	if ended, err := a.awaitFinish(kctx, rec); ended || err != nil {
		return err
	}
	full, err := a.beginRelease(kctx, &rec)
	if err != nil {
		return err
	}
	return rest(kctx, rec, full)
}

// releaseNow removes all state of a marked attachment but its link.
func (a *attachments) releaseNow(ctx context.Context, rec attachment.Record, why string, full error) error {
	if err := a.wiring.unwire(ctx, rec); err != nil {
		return err
	}
	if err := failpoint.Hit("daemon.del.detached"); err != nil {
		return err
	}
	if !rec.Lease.Empty() {
		a.reaper.add(rec.HostLink, rec.Netns)
	}
	if full != nil {
		return recordFailure(&heldBack{full})
	}
	return a.endRelease(rec, why)
}

// beginRelease marks the record as releasing and writes the cooling records. full is their error if there was no space.
func (a *attachments) beginRelease(ctx context.Context, rec *attachment.Record) (full, err error) {
	if rec.State != attachment.Releasing {
		rec.State = attachment.Releasing
		if err := a.put(*rec); err != nil {
			return nil, err
		}
	}
	if err := failpoint.Hit("daemon.del.marked"); err != nil {
		return nil, err
	}
	full, err = a.cooling.begin(ctx, rec.Lease.Held(), attachment.Cooling{Key: rec.Key, HostLink: rec.HostLink})
	if err != nil {
		return nil, err
	}
	return full, failpoint.Hit("daemon.del.cooling")
}

// endRelease removes the record of an attachment that is detached, and lets its addresses cool.
func (a *attachments) endRelease(rec attachment.Record, why string) error {
	if err := a.store.Delete(rec.Key); err != nil {
		return recordFailure(err)
	}
	err := failpoint.Hit("daemon.del.unrecorded")
	a.parts.gone(rec)
	a.source.Release(rec.Key)
	a.cooling.add(a.clock.Boot(), rec.Lease.Held()...)
	a.log.Info("released", rec.ForLog("why", why)...)
	return errors.Join(err, failpoint.Hit("daemon.del.released"))
}

// finish completes releaseLater, without the container's lock: others who hold it await the reaper before they change
// the attachment.
func (a *attachments) finish(ctx context.Context, rec attachment.Record) error {
	if _, ok := a.store.Get(rec.Key); !ok {
		return nil
	}
	kctx, cancel := kernelContext(ctx)
	defer cancel()
	if err := a.parts.remove(kctx, rec); err != nil {
		return err
	}
	if err := kctx.Err(); err != nil { // parts may have ended early
		return err
	}
	if err := failpoint.Hit("daemon.del.detached"); err != nil {
		return err
	}
	return a.endRelease(rec, "DEL")
}

// awaitFinish waits for the reaper if it finishes the release of an attachment. The caller holds the container's lock.
// ended means that the attachment has no record any longer.
func (a *attachments) awaitFinish(ctx context.Context, rec attachment.Record) (ended bool, err error) {
	if rec.State != attachment.Releasing {
		return false, nil
	}
	if err := a.reaper.await(ctx, rec.HostLink, attachment.Netns{}); err != nil {
		return false, kernelFailure(err)
	}
	_, ok := a.store.Get(rec.Key)
	return !ok, nil
}

// gc releases the attachments of one network that are not in valid. It keeps those added
// after the call began, which the caller cannot know. It tries all of them and joins the errors.
func (a *attachments) gc(ctx context.Context, network string, valid []attachment.Key) ([]attachment.Key, error) {
	start := a.clock.Now()
	keep := map[attachment.Key]bool{}
	for _, k := range valid {
		keep[k] = true
	}
	var released []attachment.Key
	var errs []error
	for _, rec := range a.store.Records() {
		if rec.Key.Network != network || keep[rec.Key] || rec.Since.After(start) {
			continue
		}
		switch done, err := a.releaseIf(ctx, rec, "GC"); {
		case err != nil:
			errs = append(errs, fmt.Errorf("releasing %s: %w", rec.Key, err))
		case done:
			released = append(released, rec.Key)
		}
	}
	return released, errors.Join(errs...)
}

// releaseIf releases an attachment if its record has not changed.
func (a *attachments) releaseIf(ctx context.Context, seen attachment.Record, why string) (bool, error) {
	unlock, err := a.locks.lock(ctx, seen.Key.ContainerID)
	if err != nil {
		return false, err
	}
	defer unlock()
	rec, ok := a.store.Get(seen.Key)
	if !ok || !rec.Since.Equal(seen.Since) {
		return false, nil
	}
	if rec.State == attachment.Pending {
		return true, a.undo(ctx, rec)
	}
	return true, a.unlessHeldBack(rec.Key, a.release(ctx, rec, why))
}

// A full file system must not prevent the removal of a pod, but DEL needs space for cooling records. If
// they cannot be written, the attachment's own record remains in state releasing and withholds the addresses;
// the sweep or the next start finishes the release when there is space.

// heldBack is the error of a release that removed everything from the kernel but could not write
// cooling records.
type heldBack struct{ err error }

// Error implements error.
func (h *heldBack) Error() string { return h.err.Error() }

// Unwrap returns the file system's error.
func (h *heldBack) Unwrap() error { return h.err }

// unlessHeldBack returns nil for a heldBack, which is a success for the caller of DEL, and err otherwise.
func (a *attachments) unlessHeldBack(key attachment.Key, err error) error {
	h, ok := errors.AsType[*heldBack](err)
	if !ok {
		return err
	}
	a.writable.failed.Set()
	a.log.Warn("removed; its addresses stay withheld until cooling records can be written", "attachment", key.String(), "err", h)
	return nil
}
