package daemon

import (
	"context"
	"errors"
	"reflect"
	"slices"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/node/attachment"
)

var _ = failpoint.Register("daemon.nics.removed", "daemon.nics.recorded", "daemon.nics.changed")

// changeNICs brings a ready attachment to the NICs that it is to have by now: the pod was
// given one or gave one up, somebody deleted a port and the operator had another made,
// or a port has other addresses. What goes is unplugged first, as interfaces have their
// names. The record then says what is to be plugged, before any of it is: whoever
// starts after a crash goes on from there. The container's lock is held, but not while
// the NICs come to carry packets, so that no DEL or CHECK waits for that.
//
// What cannot be done does not keep the rest; it is for the next time. The error joins
// Failures.
func (d *Daemon) changeNICs(ctx context.Context, key attachment.Key) error {
	rec, err := d.beginChange(ctx, key)
	if rec == nil {
		return err
	}
	there, missing := d.each(ctx, *rec, "waiting for ", d.NICs.Expect)
	done, failed := d.plugChange(ctx, key, there)
	if done == nil {
		return errors.Join(err, missing, failed)
	}
	active, waits := d.each(ctx, *done, "waiting for packets of ", d.NICs.Await)
	if len(active) > 0 {
		waits = errors.Join(waits, failpoint.Hit("daemon.nics.active"))
	}
	return errors.Join(err, missing, failed, waits, d.endChange(ctx, key, active))
}

// beginChange unplugs what is not wanted and records what is. The record that it returns has
// the NICs alone that are to be plugged or changed; nil: there are none.
func (d *Daemon) beginChange(ctx context.Context, key attachment.Key) (*attachment.Record, error) {
	unlock, err := d.locks.lock(ctx, key.ContainerID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	rec, ok := d.Store.Get(key)
	if !ok || rec.State != attachment.Ready {
		return nil, nil
	}
	wanted, differ := d.NICs.Wanted(rec)
	if !differ || d.followed(rec) {
		return nil, nil
	}
	if alive, err := d.netnsAlive(rec.Netns); !alive && err == nil {
		return nil, nil // the sweep's matter
	}
	kctx, cancel := kernelContext(ctx)
	defer cancel()
	nics, err := d.unplugUnwanted(kctx, rec, wanted)
	if err != nil && len(nics) == 0 {
		return nil, err
	}
	if put := d.recordNICs(&rec, nics); put != nil {
		return nil, errors.Join(err, put)
	}
	if _, failed := d.wireLease(kctx, rec); failed != nil { // the own interface may be one of several now
		return nil, errors.Join(err, failed)
	}
	if rec.NICs = slices.DeleteFunc(slices.Clone(rec.NICs), settled); len(rec.NICs) == 0 {
		return nil, err
	}
	return &rec, err
}

func settled(n attachment.NIC) bool { return n.State == attachment.Plugged }

// recordNICs records the NICs that an attachment is to have, and tells of those that are
// plugged, if they are others than before.
func (d *Daemon) recordNICs(rec *attachment.Record, nics []attachment.NIC) error {
	if reflect.DeepEqual(rec.NICs, nics) {
		return nil
	}
	before := nicNames(*rec)
	rec.NICs = nics
	if err := d.Store.Put(*rec); err != nil {
		return recordFailure(err)
	}
	d.NICs.Plugged(*rec)
	d.Log.Info("NICs of a running pod change", forLog(*rec, "before", before)...)
	return failpoint.Hit("daemon.nics.recorded")
}

// followed tells whether the pod has a later sandbox: that has the NICs, and this one goes.
func (d *Daemon) followed(rec attachment.Record) bool {
	return slices.ContainsFunc(d.Store.Records(), func(o attachment.Record) bool {
		return o.Key.ContainerID != rec.Key.ContainerID && o.Pod.UID != "" && o.Pod.UID == rec.Pod.UID && o.Key.IfName == rec.Key.IfName && o.Since.After(rec.Since)
	})
}

// unplugUnwanted takes away the NICs of a record that are not wanted any more, the last
// first, and returns those that the record is to have: what could not be taken away stays,
// and so nothing comes of its name or port.
func (d *Daemon) unplugUnwanted(ctx context.Context, rec attachment.Record, wanted []attachment.NIC) (nics []attachment.NIC, err error) {
	var stay []attachment.NIC
	for _, old := range slices.Backward(rec.NICs) {
		if slices.ContainsFunc(wanted, old.Is) {
			continue
		}
		if failed := d.NICs.Unplug(ctx, rec, old); failed != nil {
			err = errors.Join(err, nicFailure("unplugging "+nicName(old)+", which the pod is not to have any more", failed))
			stay = append(stay, old)
			continue
		}
		if hit := failpoint.Hit("daemon.nics.removed"); hit != nil {
			return nil, errors.Join(err, hit)
		}
	}
	for _, n := range wanted {
		if !slices.ContainsFunc(stay, func(o attachment.NIC) bool { return o.IfName == n.IfName || o.Port == n.Port }) {
			nics = append(nics, n)
		}
	}
	return append(nics, stay...), err
}

// plugChange plugs those NICs of an attachment that it is still to have as they are, and
// records what the kernel tells of them. The record that it returns has those alone that are
// plugged; nil: none.
func (d *Daemon) plugChange(ctx context.Context, key attachment.Key, nics []attachment.NIC) (*attachment.Record, error) {
	if len(nics) == 0 {
		return nil, nil
	}
	unlock, err := d.locks.lock(ctx, key.ContainerID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	rec, ok := d.Store.Get(key)
	if !ok || rec.State != attachment.Ready {
		return nil, nil
	}
	kctx, cancel := kernelContext(ctx)
	defer cancel()
	rec.NICs = slices.Clone(rec.NICs)
	var done []attachment.NIC
	var errs []error
	for i := range rec.NICs {
		nic := &rec.NICs[i]
		if !slices.ContainsFunc(nics, func(n attachment.NIC) bool { return reflect.DeepEqual(n, *nic) }) {
			continue
		}
		if err := d.plugOne(kctx, rec, nic); err != nil {
			errs = append(errs, err)
			continue
		}
		done = append(done, *nic)
	}
	if len(done) == 0 {
		return nil, errors.Join(errs...)
	}
	if err := d.Store.Put(rec); err != nil {
		return nil, errors.Join(append(errs, recordFailure(err))...)
	}
	rec.NICs = done
	return &rec, errors.Join(errs...)
}

// each returns those NICs of a record of which something is so before an ADD would give it
// up.
func (d *Daemon) each(ctx context.Context, rec attachment.Record, what string, is func(context.Context, attachment.Record) error) (so []attachment.NIC, err error) {
	ctx, cancel := context.WithTimeout(ctx, max(d.WarmWait, d.NICWait))
	defer cancel()
	defer context.AfterFunc(d.draining, cancel)()
	for _, nic := range rec.NICs {
		one := rec
		one.NICs = []attachment.NIC{nic}
		if failed := is(ctx, one); failed != nil {
			err = errors.Join(err, nicFailure(what+nicName(nic), failed))
			continue
		}
		so = append(so, nic)
	}
	return so, err
}

// endChange records that NICs are plugged, of those that the attachment has still and is to
// have as they are.
func (d *Daemon) endChange(ctx context.Context, key attachment.Key, active []attachment.NIC) error {
	if len(active) == 0 {
		return nil
	}
	unlock, err := d.locks.lock(ctx, key.ContainerID)
	if err != nil {
		return err
	}
	defer unlock()
	rec, ok := d.Store.Get(key)
	if !ok || rec.State != attachment.Ready {
		return nil
	}
	rec.NICs = slices.Clone(rec.NICs)
	ended := 0
	for i, n := range rec.NICs {
		if slices.ContainsFunc(active, func(a attachment.NIC) bool { return reflect.DeepEqual(a, n) }) {
			rec.NICs[i].State = attachment.Plugged
			ended++
		}
	}
	if ended == 0 {
		return nil
	}
	if err := d.Store.Put(rec); err != nil {
		return recordFailure(err)
	}
	d.NICs.Plugged(rec)
	d.Log.Info("NICs of a running pod carry packets", forLog(rec)...)
	return failpoint.Hit("daemon.nics.changed")
}

// asked is what the operator says of NICs, without what the kernel tells and how far they
// have come.
func asked(nics []attachment.NIC) []attachment.NIC {
	nics = slices.Clone(nics)
	for i := range nics {
		nics[i].HostLink, nics[i].HostMAC, nics[i].State, nics[i].Later = "", nil, attachment.Plugged, false
	}
	return nics
}
