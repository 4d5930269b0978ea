package daemon

import (
	"context"
	"errors"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/node/attachment"
)

var _ = failpoint.Register(
	"daemon.del.marked", "daemon.del.cooling", "daemon.del.detached", "daemon.del.unrecorded", "daemon.del.released",
)

// del removes an attachment, whatever is there of it. An unknown one is no
// error. An ADD of it that waits for an address fails now.
func (d *Daemon) del(ctx context.Context, key attachment.Key) error {
	end := d.waits.del(key)
	unlock, err := d.locks.lock(ctx, key.ContainerID)
	end()
	if err != nil {
		return err
	}
	defer unlock()
	rec, ok := d.Store.Get(key)
	switch {
	case !ok:
		return d.unlessHeldBack(key, d.delQuarantined(ctx, key))
	case rec.State == attachment.Pending:
		return d.undo(ctx, rec)
	default:
		return d.unlessHeldBack(key, d.release(ctx, rec, "DEL"))
	}
}

// release takes an attachment from ready to nothing. The caller holds the
// container's lock. The record says first that removal has begun, and what
// cools is on disk before the pod loses its routes: a crash in between is
// finished at the next start, with the address still held back. The link is
// removed behind the reply; should the daemon end first, the next start finds it.
// Without space for what cools the outcome is heldBack.
func (d *Daemon) release(ctx context.Context, rec attachment.Record, why string) error {
	kctx, cancel := kernelContext(ctx)
	defer cancel()
	if rec.State != attachment.Releasing {
		rec.State = attachment.Releasing
		if err := d.Store.Put(rec); err != nil {
			return recordFailure(err)
		}
	}
	if err := failpoint.Hit("daemon.del.marked"); err != nil {
		return err
	}
	full, err := d.cooling.begin(kctx, rec.Lease.Held(), attachment.Cooling{Key: rec.Key, HostLink: rec.HostLink})
	if err != nil {
		return err
	}
	if err := failpoint.Hit("daemon.del.cooling"); err != nil {
		return err
	}
	if err := d.unwire(kctx, rec); err != nil {
		return err
	}
	d.tellUnplugged(rec)
	if err := failpoint.Hit("daemon.del.detached"); err != nil {
		return err
	}
	if !rec.Lease.Empty() {
		d.reaper.add(rec.HostLink, rec.Netns)
	}
	if full != nil {
		return recordFailure(&heldBack{full})
	}
	if err := d.Store.Delete(rec.Key); err != nil {
		return recordFailure(err)
	}
	err = failpoint.Hit("daemon.del.unrecorded")
	d.tellGone(rec)
	d.Source.Release(rec.Key)
	d.cooling.add(d.Clock.Boot(), rec.Lease.Held()...)
	d.Log.Info("released", forLog(rec, "why", why)...)
	return errors.Join(err, failpoint.Hit("daemon.del.released"))
}
