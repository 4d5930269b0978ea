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

// del removes an attachment, whatever is there of it. An unknown one is no
// error. An ADD of it that waits for an address fails now.
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
	default:
		return a.unlessHeldBack(key, a.release(ctx, rec, "DEL"))
	}
}

// release takes an attachment from ready to nothing. The caller holds the
// container's lock. The record says first that removal has begun, and what
// cools is on disk before the pod loses its routes: a crash in between is
// finished at the next start, with the address still held back. The link is
// removed behind the reply; should the daemon end first, the next start finds it.
// Without space for what cools the outcome is heldBack.
func (a *attachments) release(ctx context.Context, rec attachment.Record, why string) error {
	kctx, cancel := kernelContext(ctx)
	defer cancel()
	if rec.State != attachment.Releasing {
		rec.State = attachment.Releasing
		if err := a.put(rec); err != nil {
			return err
		}
	}
	if err := failpoint.Hit("daemon.del.marked"); err != nil {
		return err
	}
	full, err := a.cooling.begin(kctx, rec.Lease.Held(), attachment.Cooling{Key: rec.Key, HostLink: rec.HostLink})
	if err != nil {
		return err
	}
	if err := failpoint.Hit("daemon.del.cooling"); err != nil {
		return err
	}
	if err := a.wiring.unwire(kctx, rec); err != nil {
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
	if err := a.store.Delete(rec.Key); err != nil {
		return recordFailure(err)
	}
	err = failpoint.Hit("daemon.del.unrecorded")
	a.parts.gone(rec)
	a.source.Release(rec.Key)
	a.cooling.add(a.clock.Boot(), rec.Lease.Held()...)
	a.log.Info("released", rec.ForLog("why", why)...)
	return errors.Join(err, failpoint.Hit("daemon.del.released"))
}

// gc releases the attachments of one network that are not in valid, and
// leaves those alone that were added after the call began, of which the
// caller cannot have known. All are tried; the errors are joined.
func (a *attachments) gc(ctx context.Context, network string, valid []attachment.Key) ([]attachment.Key, error) {
	begun := a.clock.Now()
	keep := map[attachment.Key]bool{}
	for _, k := range valid {
		keep[k] = true
	}
	var released []attachment.Key
	var errs []error
	for _, rec := range a.store.Records() {
		if rec.Key.Network != network || keep[rec.Key] || rec.Since.After(begun) {
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

// releaseIf releases an attachment if it is still the one that was looked at.
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

// A full file system must not keep a pod from being removed. What needs space of
// a DEL are the records that its addresses cool. Where those cannot be written the
// attachment's own record stays, as releasing, and holds the addresses back: the
// sweep, or the next start, finishes the rest when there is space.

// heldBack is the outcome of a removal that left nothing in the kernel, and
// addresses whose cooling could not be recorded.
type heldBack struct{ err error }

// Error implements error.
func (h *heldBack) Error() string { return h.err.Error() }

// Unwrap gives the file system's error.
func (h *heldBack) Unwrap() error { return h.err }

// unlessHeldBack is the outcome of a removal for who asked for it: it is done.
func (a *attachments) unlessHeldBack(key attachment.Key, err error) error {
	h, ok := errors.AsType[*heldBack](err)
	if !ok {
		return err
	}
	a.writable.failed.Set()
	a.log.Warn("removed, but its addresses stay out of use until that can be recorded", "attachment", key.String(), "err", h)
	return nil
}
