package daemon

import (
	"context"
	"errors"
	"slices"

	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon/part"
	"github.com/berthnet/berth/internal/source"
)

// parts are the parts of a daemon, in the order in which they are set up.
type parts []part.Part

// remove removes the state of all parts, the last first, even if one fails. It returns the error of
// the first that failed.
func (ps parts) remove(ctx context.Context, rec attachment.Record) (first error) {
	for _, p := range slices.Backward(ps) {
		if err := p.Remove(ctx, rec); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// setUp sets up all parts in order, and returns the record with the kernel's values.
func (ps parts) setUp(ctx context.Context, rec attachment.Record) (_ attachment.Record, err error) {
	for i := 0; i < len(ps) && err == nil; i++ {
		rec, err = ps[i].SetUp(ctx, rec)
	}
	return rec, err
}

// linger reports whether a record has state of parts, all of which may be removed after the reply to DEL.
func (ps parts) linger(rec attachment.Record) bool {
	found := false
	for _, p := range ps {
		has, lingers := p.Lingers(rec)
		if has && !lingers {
			return false
		}
		found = found || has
	}
	return found
}

// outlive reports whether a record has state of a part that a reboot may leave on the node.
func (ps parts) outlive(rec attachment.Record) bool {
	return slices.ContainsFunc(ps, func(p part.Part) bool {
		checks, _ := p.Checks(rec)
		return checks && p.About().OutlivesReboot
	})
}

func (ps parts) ready(rec attachment.Record) {
	for _, p := range ps {
		p.Ready(rec)
	}
}

func (ps parts) gone(rec attachment.Record) {
	for _, p := range ps {
		p.Gone(rec)
	}
}

// links returns the host links of attachments of which parts have state on the node.
func (ps parts) links(ctx context.Context) (links []string, err error) {
	for _, p := range ps {
		of, failed := p.Links(ctx)
		links, err = append(links, of...), errors.Join(err, failed)
	}
	return links, err
}

// clear removes all state that parts have on the node for one attachment, by its host link.
func (ps parts) clear(ctx context.Context, hostLink string) error {
	var errs []error
	for _, p := range ps {
		errs = append(errs, p.Sweep(ctx, func(link, _ string) bool { return link != hostLink }))
	}
	return errors.Join(errs...)
}

// withParts is a source whose snapshots include the parts.
type withParts struct {
	source.Source
	parts parts
}

// Snapshot implements source.Source.
func (s withParts) Snapshot() source.Snapshot {
	snap := s.Source.Snapshot()
	snap.Conditions = slices.Clip(snap.Conditions) // the source may share the slice
	for _, p := range s.parts {
		p.Describe(&snap)
	}
	return snap
}
