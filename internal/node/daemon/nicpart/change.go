package nicpart

import (
	"context"
	"errors"
	"reflect"
	"slices"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon/part"
)

var _ = failpoint.Register("daemon.nics.removed", "daemon.nics.recorded", "daemon.nics.changed")

// change is one change of the NICs of a ready attachment.
type change struct {
	Part
	host part.Host
	key  attachment.Key
}

// Desired implements part.Part.
func (p Part) Desired(rec attachment.Record) (what any, differs bool) {
	nics, differs := p.NICs.Desired(rec)
	nics = slices.Clone(nics)
	for i := range nics { // without fields from the kernel and without states
		nics[i].HostLink, nics[i].HostMAC, nics[i].State, nics[i].Later = "", nil, attachment.Plugged, false
	}
	return nics, differs
}

// Change implements part.Part: the pod gained or lost a NIC, the operator recreated a deleted port, or
// a port has other addresses. Removed NICs are unplugged first, because their interface names may be
// reused. The container's lock is held, but not while NICs become active, so that no DEL or CHECK waits
// for that.
//
// A NIC that cannot be changed does not affect the others and is retried in the next attempt. The error joins
// Failures.
func (p Part) Change(ctx context.Context, host part.Host, key attachment.Key) error {
	c := change{p, host, key}
	rec, err := c.begin(ctx)
	if rec == nil {
		return err
	}
	there, missing := c.each(ctx, *rec, "waiting for ", p.NICs.Expect)
	done, failed := c.plugAll(ctx, there)
	if done == nil {
		return errors.Join(err, missing, failed)
	}
	active, waits := c.each(ctx, *done, "waiting for packets of ", p.NICs.Await)
	if len(active) > 0 {
		waits = errors.Join(waits, failpoint.Hit("daemon.nics.active"))
	}
	return errors.Join(err, missing, failed, waits, c.end(ctx, active))
}

// begin unplugs undesired NICs and records the desired ones. The returned record has
// only the NICs that must be plugged or changed; nil means that there are none.
func (c change) begin(ctx context.Context) (*attachment.Record, error) {
	rec, release, err := c.host.Hold(ctx, c.key)
	if release == nil {
		return nil, err
	}
	defer release()
	desired, differs := c.NICs.Desired(rec)
	if !differs {
		return nil, nil
	}
	kctx, cancel := c.host.Setting(ctx)
	defer cancel()
	nics, err := c.unplugUndesired(kctx, rec, desired)
	if err != nil && len(nics) == 0 {
		return nil, err
	}
	if put := c.record(&rec, nics); put != nil {
		return nil, errors.Join(err, put)
	}
	if failed := c.host.SetUpLease(kctx, rec); failed != nil { // the own interface may have become one of several
		return nil, errors.Join(err, failed)
	}
	settled := func(n attachment.NIC) bool { return n.State == attachment.Plugged }
	if rec.NICs = slices.DeleteFunc(slices.Clone(rec.NICs), settled); len(rec.NICs) == 0 {
		return nil, err
	}
	return &rec, err
}

// record records the NICs that an attachment should have, and reports the plugged ones if they
// have changed.
func (c change) record(rec *attachment.Record, nics []attachment.NIC) error {
	if reflect.DeepEqual(rec.NICs, nics) {
		return nil
	}
	before := rec.NICNames()
	rec.NICs = nics
	if err := c.host.Put(*rec); err != nil {
		return err
	}
	c.NICs.Plugged(*rec)
	c.Log.Info("NICs of a running pod change", rec.ForLog("before", before)...)
	return failpoint.Hit("daemon.nics.recorded")
}

// unplugUndesired unplugs the NICs of a record that are no longer desired, the last first, and
// returns the NICs for the new record. A NIC that could not be unplugged stays in the record, so that its
// name and port are not reused.
func (c change) unplugUndesired(ctx context.Context, rec attachment.Record, desired []attachment.NIC) (nics []attachment.NIC, err error) {
	var stay []attachment.NIC
	for _, old := range slices.Backward(rec.NICs) {
		if slices.ContainsFunc(desired, old.Is) {
			continue
		}
		if failed := c.NICs.Unplug(ctx, rec, old); failed != nil {
			err = errors.Join(err, failure("unplugging "+name(old)+", which the pod no longer requests", failed))
			stay = append(stay, old)
			continue
		}
		if hit := failpoint.Hit("daemon.nics.removed"); hit != nil {
			return nil, errors.Join(err, hit)
		}
	}
	for _, n := range desired {
		if !slices.ContainsFunc(stay, func(o attachment.NIC) bool { return o.IfName == n.IfName || o.Port == n.Port }) {
			nics = append(nics, n)
		}
	}
	return append(nics, stay...), err
}

// plugAll plugs those of the NICs that the attachment still has unchanged, and records the kernel's
// values. The returned record has only the plugged ones; nil means none.
func (c change) plugAll(ctx context.Context, nics []attachment.NIC) (*attachment.Record, error) {
	if len(nics) == 0 {
		return nil, nil
	}
	rec, release, err := c.host.Hold(ctx, c.key)
	if release == nil {
		return nil, err
	}
	defer release()
	kctx, cancel := c.host.Setting(ctx)
	defer cancel()
	// Network policies know the pod's addresses before it has them.
	if err := c.host.PrepareLater(kctx, rec); err != nil {
		return nil, err
	}
	rec.NICs = slices.Clone(rec.NICs)
	var done []attachment.NIC
	var errs []error
	for i := range rec.NICs {
		nic := &rec.NICs[i]
		if !slices.ContainsFunc(nics, func(n attachment.NIC) bool { return reflect.DeepEqual(n, *nic) }) {
			continue
		}
		if err := c.plug(kctx, rec, nic); err != nil {
			errs = append(errs, err)
			continue
		}
		done = append(done, *nic)
	}
	if len(done) == 0 {
		return nil, errors.Join(errs...)
	}
	if err := c.host.Put(rec); err != nil {
		return nil, errors.Join(append(errs, err)...)
	}
	rec.NICs = done
	return &rec, errors.Join(errs...)
}

// each returns the NICs of a record for which is returns nil within the waiting time of an ADD.
func (c change) each(ctx context.Context, rec attachment.Record, what string, is func(context.Context, attachment.Record) error) (so []attachment.NIC, err error) {
	ctx, cancel := c.host.Waiting(ctx)
	defer cancel()
	for _, nic := range rec.NICs {
		one := rec
		one.NICs = []attachment.NIC{nic}
		if failed := is(ctx, one); failed != nil {
			err = errors.Join(err, failure(what+name(nic), failed))
			continue
		}
		so = append(so, nic)
	}
	return so, err
}

// end records as plugged those of the NICs that the attachment still has unchanged.
func (c change) end(ctx context.Context, active []attachment.NIC) error {
	if len(active) == 0 {
		return nil
	}
	rec, release, err := c.host.Hold(ctx, c.key)
	if release == nil {
		return err
	}
	defer release()
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
	if err := c.host.Put(rec); err != nil {
		return err
	}
	c.NICs.Plugged(rec)
	c.Log.Info("NICs of a running pod carry packets", rec.ForLog()...)
	return failpoint.Hit("daemon.nics.changed")
}
