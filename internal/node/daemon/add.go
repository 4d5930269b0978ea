package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon/cnierror"
	"github.com/berthnet/berth/internal/source"
)

var _ = failpoint.Register(
	"daemon.add.leased", "daemon.add.recorded", "daemon.add.wired", "daemon.add.ready",
	"daemon.undo.detached", "daemon.undo.reaped", "daemon.undo.unrecorded",
)

// attachments adds, checks and removes the attachments of the node and keeps their records. Each operation
// holds the lock of the container.
type attachments struct {
	store    *attachment.Store
	source   source.Source
	acquirer *acquirer
	wiring   *wiring
	parts    parts
	locks    *keyLocks // by container ID
	reaper   *reaper
	cooling  *coolingRecords
	usable   *usableMark
	writable *writable
	// inspect identifies a network namespace.
	inspect    func(path string) (datapath.NetnsID, error)
	quarantine *quarantine
	followers  keepers // of parts that watch interfaces
	clock      clock.Clock
	log        *slog.Logger
}

func newAttachments(o Options, d *Daemon) *attachments {
	return &attachments{
		store: o.Store, source: o.Source, parts: o.Parts, acquirer: newAcquirer(d.draining, o), wiring: &wiring{o.Kernel, o.Parts}, locks: newKeyLocks(),
		reaper: d.reaper, cooling: d.cooling, usable: d.usable, writable: d.writable, inspect: o.InspectNetns, clock: o.Clock, log: o.Log,
	}
}

// add attaches one interface. It acquires parts and lease, writes the record, sets up the kernel and
// writes the record again, in this order, so that a crash at any point leaves a record of what must be
// undone. want has the key, the pod, the path of the namespace and the MTU, or 0 for the node's MTU.
// Repeating an add returns the same record. A failed or cancelled add leaves nothing behind.
func (a *attachments) add(ctx context.Context, want attachment.Record, options attachment.PodOptions) (attachment.Record, error) {
	patience, leave := a.acquirer.adds.enter(ctx)
	defer leave()
	unlock, err := a.locks.lock(patience, want.Key.ContainerID)
	if err != nil {
		return attachment.Record{}, err
	}
	defer unlock()
	want.Netns, err = netnsOf(a.inspect, want.Netns.Path)
	if err != nil {
		return attachment.Record{}, err
	}
	if rec, ok := a.store.Get(want.Key); ok {
		if rec.State == attachment.Ready && rec.Netns.Same(want.Netns) && reflect.DeepEqual(rec.Chained, want.Chained) {
			return a.addAgain(ctx, rec)
		}
		if err := a.clear(ctx, rec); err != nil {
			return attachment.Record{}, err
		}
	}
	want.HostLink = hostLinkName(want.Key)
	if err := a.reaper.await(patience, want.HostLink, want.Netns); err != nil {
		return attachment.Record{}, err
	}
	want, until, err := a.acquirer.acquire(patience, want, options)
	if err != nil {
		return attachment.Record{}, err
	}
	want.State, want.Since = attachment.Pending, a.clock.Now().UTC().Round(0)
	return a.setUp(ctx, want, until)
}

// addAgain answers a repeated ADD, and restores state that other software removed.
func (a *attachments) addAgain(ctx context.Context, rec attachment.Record) (attachment.Record, error) {
	now, err := a.again(ctx, rec, a.wiring.wire)
	if err == nil {
		a.parts.ready(now)
	}
	return now, err
}

// again restores missing state of a ready attachment, or of one part of it.
func (a *attachments) again(ctx context.Context, rec attachment.Record, wire func(context.Context, attachment.Record) (attachment.Record, error)) (attachment.Record, error) {
	kctx, cancel := kernelContext(ctx)
	defer cancel()
	now, err := wire(kctx, rec)
	if err == nil && !reflect.DeepEqual(now, rec) {
		err = a.put(now)
	}
	if err != nil {
		return attachment.Record{}, err
	}
	return now, nil
}

// addAgainLater restores missing state of a lease, if the attachment is still ready. The caller saw the
// attachment without its container's lock.
func (a *attachments) addAgainLater(ctx context.Context, seen attachment.Record) error {
	unlock, err := a.locks.lock(ctx, seen.Key.ContainerID)
	if err != nil {
		return err
	}
	rec, ok := a.store.Get(seen.Key)
	if ok = ok && rec.State == attachment.Ready; ok {
		_, err = a.again(ctx, rec, a.wiring.wireLease)
	}
	unlock()
	if ok {
		a.followers.touch(rec) // without the lock, which they need
	}
	return err
}

// clear removes an attachment with the same key that is partially set up or removed, or whose sandbox no
// longer exists.
func (a *attachments) clear(ctx context.Context, rec attachment.Record) error {
	if rec.State == attachment.Pending {
		return a.undo(ctx, rec)
	}
	return a.release(ctx, rec, "replaced by a new sandbox")
}

// setUp brings an attachment to ready or, failing that, undoes all of it, including the lease. until is the
// deadline for parts to carry traffic. A panic leaves the record for the next start or DEL.
func (a *attachments) setUp(ctx context.Context, rec attachment.Record, until time.Time) (attachment.Record, error) {
	if err := a.begin(ctx, rec); err != nil {
		a.source.Cancel(rec.Key)
		return attachment.Record{}, err
	}
	ready, err := a.trySetUp(ctx, rec, until)
	if err == nil {
		err = context.Cause(ctx) // the runtime no longer waits for the result
	}
	if err == nil {
		a.usable.set()
		a.parts.ready(ready)
		a.log.Info("attached", ready.ForLog("from", rec.Lease.Group())...)
		return ready, nil
	}
	if undoErr := a.giveUp(ctx, rec, err); undoErr != nil {
		a.log.Error("undoing a failed ADD failed, will try again", "attachment", rec.Key.String(), "err", undoErr)
	}
	return attachment.Record{}, err
}

// giveUp undoes a failed setup. An address that is in use elsewhere in the kernel cools, so that the
// next pod gets another one.
func (a *attachments) giveUp(ctx context.Context, rec attachment.Record, cause error) error {
	if errors.Is(cause, datapath.ErrAddressInUse) {
		return a.release(ctx, rec, "its address is in use in the kernel")
	}
	return a.undo(ctx, rec)
}

// begin writes the record of the attachment that is about to be set up. Without a record nothing is changed
// in the kernel: a link with this name may belong to another attachment.
func (a *attachments) begin(ctx context.Context, rec attachment.Record) error {
	if err := failpoint.Hit("daemon.add.leased"); err != nil {
		return err
	}
	if err := awaitPorts(ctx, a.store, a.reaper, rec); err != nil {
		return err
	}
	return a.put(rec)
}

// awaitPorts waits for the reaper if it removes a NIC of an ended sandbox with a port of this attachment.
func awaitPorts(ctx context.Context, store *attachment.Store, r *reaper, rec attachment.Record) error {
	for _, nic := range rec.NICs {
		holder, held := store.ByPort(nic.Port)
		if !held || holder.Key == rec.Key || holder.State != attachment.Releasing {
			continue
		}
		soon, cancel := context.WithTimeout(ctx, kernelTimeout)
		err := r.await(soon, holder.HostLink, attachment.Netns{})
		cancel()
		if err != nil {
			return fmt.Errorf("port %s is not unplugged yet from container %s: %w", nic.Port, holder.Key.ContainerID, err)
		}
	}
	return nil
}

func (a *attachments) trySetUp(ctx context.Context, rec attachment.Record, until time.Time) (attachment.Record, error) {
	// A leftover cooling record has expired, or the source would not have leased the address. The
	// attachment's record takes precedence.
	for _, addr := range rec.Lease.Held() {
		if err := a.store.DeleteCooling(addr); err != nil {
			return rec, recordFailure(err)
		}
	}
	if err := failpoint.Hit("daemon.add.recorded"); err != nil {
		return rec, err
	}
	if err := a.acquirer.prepare(ctx, rec, until); err != nil {
		return rec, err
	}
	kctx, cancel := kernelContext(ctx)
	defer cancel()
	rec, err := a.wiring.wire(kctx, rec)
	if err != nil {
		return rec, err
	}
	if err := failpoint.Hit("daemon.add.wired"); err != nil {
		return rec, err
	}
	if err := a.acquirer.await(ctx, rec, until); err != nil {
		return rec, err
	}
	rec.State = attachment.Ready
	if err := a.put(rec); err != nil {
		return rec, err
	}
	return rec, failpoint.Hit("daemon.add.ready")
}

// undo removes an attachment of a failed ADD. The address does not cool, because no pod ever used it.
// State that cannot be removed now stays recorded as pending, for the sweep, the next ADD or DEL, or the
// next start.
func (a *attachments) undo(ctx context.Context, rec attachment.Record) error {
	kctx, cancel := kernelContext(ctx)
	defer cancel()
	rec.State = attachment.Pending
	if now, ok := a.store.Get(rec.Key); ok && now.State == attachment.Ready {
		if err := a.put(rec); err != nil {
			return err
		}
	}
	if err := a.wiring.unwire(kctx, rec); err != nil {
		return err
	}
	if err := failpoint.Hit("daemon.undo.detached"); err != nil {
		return err
	}
	if !rec.Lease.Empty() {
		a.reaper.add(rec.HostLink, rec.Netns)
		if err := a.reaper.await(kctx, rec.HostLink, attachment.Netns{}); err != nil {
			return kernelFailure(err)
		}
	}
	if err := failpoint.Hit("daemon.undo.reaped"); err != nil {
		return err
	}
	if err := a.store.Delete(rec.Key); err != nil {
		return recordFailure(err)
	}
	a.parts.gone(rec)
	err := failpoint.Hit("daemon.undo.unrecorded")
	a.source.Cancel(rec.Key)
	return err
}

// put writes a record. The error is a Failure.
func (a *attachments) put(rec attachment.Record) error {
	if err := a.store.Put(rec); err != nil {
		return recordFailure(err)
	}
	return nil
}

func recordFailure(err error) error {
	if taken, ok := errors.AsType[*attachment.PortTaken](err); ok { // retried until the former sandbox is gone
		return &cnierror.Failure{Code: types.ErrTryAgainLater, Reason: "port-in-use", Err: err,
			Message: fmt.Sprintf("port %s of NIC %s is still plugged for %s", taken.Port, taken.IfName, taken.Holder)}
	}
	return &cnierror.Failure{Code: cnierror.CodeRecord, Reason: "record", Message: "the attachment's record could not be written", Details: err.Error(), Err: err}
}
