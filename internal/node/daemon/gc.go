package daemon

import (
	"context"
	"errors"
	"fmt"

	"github.com/berthnet/berth/internal/node/attachment"
)

// gc releases the attachments of one network that are not in valid, and
// leaves those alone that were added after the call began, of which the
// caller cannot have known. All are tried; the errors are joined.
func (d *Daemon) gc(ctx context.Context, network string, valid []attachment.Key) ([]attachment.Key, error) {
	begun := d.Clock.Now()
	keep := map[attachment.Key]bool{}
	for _, k := range valid {
		keep[k] = true
	}
	var released []attachment.Key
	var errs []error
	for _, rec := range d.Store.Records() {
		if rec.Key.Network != network || keep[rec.Key] || rec.Since.After(begun) {
			continue
		}
		switch done, err := d.releaseIf(ctx, rec, "GC"); {
		case err != nil:
			errs = append(errs, fmt.Errorf("releasing %s: %w", rec.Key, err))
		case done:
			released = append(released, rec.Key)
		}
	}
	return released, errors.Join(errs...)
}

// releaseIf releases an attachment if it is still the one that was looked at.
func (d *Daemon) releaseIf(ctx context.Context, seen attachment.Record, why string) (bool, error) {
	unlock, err := d.locks.lock(ctx, seen.Key.ContainerID)
	if err != nil {
		return false, err
	}
	defer unlock()
	rec, ok := d.Store.Get(seen.Key)
	if !ok || !rec.Since.Equal(seen.Since) {
		return false, nil
	}
	if rec.State == attachment.Pending {
		return true, d.undo(ctx, rec)
	}
	return true, d.unlessHeldBack(rec.Key, d.release(ctx, rec, why))
}
