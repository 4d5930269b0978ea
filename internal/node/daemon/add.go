package daemon

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/source"
)

var _ = failpoint.Register(
	"daemon.add.leased", "daemon.add.recorded", "daemon.add.wired", "daemon.add.ready",
	"daemon.undo.detached", "daemon.undo.reaped", "daemon.undo.unrecorded",
)

// add attaches one interface: NICs and lease, record, kernel, record, in this order, so
// that a crash at any point leaves a record of what must be undone. want is the
// record without what follows from here on: it has the key, the pod, the path of
// the namespace and the MTU, 0 for the node's. The same add again gives the same
// answer. An add that fails, or whose caller left, leaves nothing.
func (d *Daemon) add(ctx context.Context, want attachment.Record, wish source.Wish) (attachment.Record, error) {
	patience, leave := d.adds.enter(ctx)
	defer leave()
	unlock, err := d.locks.lock(patience, want.Key.ContainerID)
	if err != nil {
		return attachment.Record{}, err
	}
	defer unlock()
	want.Netns, err = d.netnsOf(want.Netns.Path)
	if err != nil {
		return attachment.Record{}, err
	}
	if rec, ok := d.Store.Get(want.Key); ok {
		if rec.State == attachment.Ready && rec.Netns.Same(want.Netns) && reflect.DeepEqual(rec.Chained, want.Chained) {
			return d.addAgain(ctx, rec)
		}
		if err := d.clear(ctx, rec); err != nil {
			return attachment.Record{}, err
		}
	}
	want.HostLink = hostLinkName(want.Key)
	if err := d.reaper.await(patience, want.HostLink, want.Netns); err != nil {
		return attachment.Record{}, err
	}
	want, until, err := d.acquire(patience, want, wish)
	if err != nil {
		return attachment.Record{}, err
	}
	want.State, want.Since = attachment.Pending, d.Clock.Now().UTC().Round(0)
	return d.setUp(ctx, want, until)
}

// addAgain answers an ADD for what is set up already, and sets up what someone
// removed of it.
func (d *Daemon) addAgain(ctx context.Context, rec attachment.Record) (attachment.Record, error) {
	now, err := d.again(ctx, rec, d.wire)
	if err == nil && now.Egress != nil {
		d.tellSetUp(now)
	}
	return now, err
}

// again sets up what is missing of an attachment that is ready, or of a part of it.
func (d *Daemon) again(ctx context.Context, rec attachment.Record, wire func(context.Context, attachment.Record) (attachment.Record, error)) (attachment.Record, error) {
	kctx, cancel := kernelContext(ctx)
	defer cancel()
	now, err := wire(kctx, rec)
	if err != nil {
		return attachment.Record{}, err
	}
	if !reflect.DeepEqual(now, rec) {
		if err := d.Store.Put(now); err != nil {
			return attachment.Record{}, recordFailure(err)
		}
	}
	return now, nil
}

// addAgainLater sets up what is missing of the lease of an attachment that was looked
// at without its container's lock, if it still is to be there.
func (d *Daemon) addAgainLater(ctx context.Context, seen attachment.Record) error {
	unlock, err := d.locks.lock(ctx, seen.Key.ContainerID)
	if err != nil {
		return err
	}
	defer unlock()
	rec, ok := d.Store.Get(seen.Key)
	if !ok || rec.State != attachment.Ready {
		return nil
	}
	_, err = d.again(ctx, rec, d.wireLease)
	d.touchEgress(rec)
	return err
}

// clear makes room for an ADD where an attachment of the same key is half set
// up, half removed, or in a sandbox that is no more.
func (d *Daemon) clear(ctx context.Context, rec attachment.Record) error {
	if rec.State == attachment.Pending {
		return d.undo(ctx, rec)
	}
	return d.release(ctx, rec, "replaced by a new sandbox")
}

// setUp takes a lease, NICs or both to a ready attachment or, failing that, undoes all
// of it, the lease included. NICs may take until a moment to carry packets. A panic
// leaves the record for the next start or DEL.
func (d *Daemon) setUp(ctx context.Context, rec attachment.Record, until time.Time) (attachment.Record, error) {
	if err := d.begin(rec); err != nil {
		d.Source.Cancel(rec.Key)
		return attachment.Record{}, err
	}
	ready, err := d.trySetUp(ctx, rec, until)
	if err == nil {
		err = context.Cause(ctx) // nobody will hear of it: the runtime would not use it
	}
	if err == nil {
		d.usable.set()
		d.tellPlugged(ready)
		d.tellSetUp(ready)
		d.Log.Info("attached", forLog(ready, "from", rec.Lease.Group())...)
		return ready, nil
	}
	if undoErr := d.giveUp(ctx, rec, err); undoErr != nil {
		d.Log.Error("undoing a failed ADD, will try again", "attachment", rec.Key.String(), "err", undoErr)
	}
	return attachment.Record{}, err
}

// giveUp undoes a failed set-up. An address that the kernel has in use
// elsewhere cools, so that the next pod tries another.
func (d *Daemon) giveUp(ctx context.Context, rec attachment.Record, cause error) error {
	if errors.Is(cause, datapath.ErrAddressInUse) {
		return d.release(ctx, rec, "its address is in use in the kernel")
	}
	return d.undo(ctx, rec)
}

// begin records what is about to be set up. Without a record the kernel is left
// alone: a link of this name may be another attachment's.
func (d *Daemon) begin(rec attachment.Record) error {
	if err := failpoint.Hit("daemon.add.leased"); err != nil {
		return err
	}
	if err := d.Store.Put(rec); err != nil {
		return recordFailure(err)
	}
	return nil
}

func (d *Daemon) trySetUp(ctx context.Context, rec attachment.Record, until time.Time) (attachment.Record, error) {
	// A cooling record that is still there has cooled, or the source would not
	// have given the address away. The attachment's record outranks it.
	for _, a := range rec.Lease.Held() {
		if err := d.Store.DeleteCooling(a); err != nil {
			return rec, recordFailure(err)
		}
	}
	if err := failpoint.Hit("daemon.add.recorded"); err != nil {
		return rec, err
	}
	d.tellComing(rec)
	if err := d.expectNICs(ctx, rec, until); err != nil {
		return rec, err
	}
	kctx, cancel := kernelContext(ctx)
	defer cancel()
	rec, err := d.wire(kctx, rec)
	if err != nil {
		return rec, err
	}
	if err := failpoint.Hit("daemon.add.wired"); err != nil {
		return rec, err
	}
	if err := d.awaitNICs(ctx, rec, until); err != nil {
		return rec, err
	}
	if err := d.awaitGateways(ctx, rec); err != nil {
		return rec, err
	}
	rec.State = attachment.Ready
	if err := d.Store.Put(rec); err != nil {
		return rec, recordFailure(err)
	}
	return rec, failpoint.Hit("daemon.add.ready")
}

// expectNICs returns once the NICs of an attachment can be plugged. The kernel's time does not
// run meanwhile, and a DEL ends it.
func (d *Daemon) expectNICs(ctx context.Context, rec attachment.Record, until time.Time) error {
	if len(rec.NICs) == 0 || d.NICs == nil {
		return nil // wire says what is wrong
	}
	req := source.Request{Key: rec.Key, Pod: rec.Pod}
	return d.wait(ctx, req, until, noLinks, func(ctx context.Context) error { return d.NICs.Expect(ctx, rec) })
}

// awaitNICs returns once the NICs of an attachment carry packets.
func (d *Daemon) awaitNICs(ctx context.Context, rec attachment.Record, until time.Time) error {
	if len(rec.NICs) == 0 {
		return nil
	}
	req := source.Request{Key: rec.Key, Pod: rec.Pod}
	if err := d.wait(ctx, req, until, noTraffic, func(ctx context.Context) error { return d.NICs.Await(ctx, rec) }); err != nil {
		return err
	}
	return failpoint.Hit("daemon.nics.active")
}

// undo takes back an ADD of which the runtime never heard that it worked. The
// address does not cool: no pod ever used it. What cannot be undone now stays
// recorded as pending, for the sweep, the next ADD or DEL, or the next start.
func (d *Daemon) undo(ctx context.Context, rec attachment.Record) error {
	kctx, cancel := kernelContext(ctx)
	defer cancel()
	rec.State = attachment.Pending
	if now, ok := d.Store.Get(rec.Key); ok && now.State == attachment.Ready {
		if err := d.Store.Put(rec); err != nil {
			return recordFailure(err)
		}
	}
	if err := d.unwire(kctx, rec); err != nil {
		return err
	}
	if err := failpoint.Hit("daemon.undo.detached"); err != nil {
		return err
	}
	if !rec.Lease.Empty() {
		d.reaper.add(rec.HostLink, rec.Netns)
		if err := d.reaper.await(kctx, rec.HostLink, attachment.Netns{}); err != nil {
			return kernelFailure(err)
		}
	}
	if err := failpoint.Hit("daemon.undo.reaped"); err != nil {
		return err
	}
	d.tellUnplugged(rec)
	if err := d.Store.Delete(rec.Key); err != nil {
		return recordFailure(err)
	}
	d.tellGone(rec)
	err := failpoint.Hit("daemon.undo.unrecorded")
	d.Source.Cancel(rec.Key)
	return err
}

// forLog is an attachment that came or went for a log line, and more about that.
func forLog(rec attachment.Record, more ...any) []any {
	args := append([]any{"attachment", rec.Key.String(), "namespace", rec.Pod.Namespace, "pod", rec.Pod.Name, "addresses", rec.Lease.Addrs()}, more...)
	if len(rec.NICs) > 0 {
		args = append(args, "nics", nicNames(rec))
	}
	if names := egressNames(rec); len(names) > 0 {
		args = append(args, "egress", names)
	}
	return args
}

func recordFailure(err error) error {
	if taken, ok := errors.AsType[*attachment.PortTaken](err); ok { // until the sandbox of before has gone
		return &Failure{Code: types.ErrTryAgainLater, Reason: "port-in-use", Err: err,
			Message: fmt.Sprintf("port %s of NIC %s is still plugged for %s", taken.Port, taken.IfName, taken.Holder)}
	}
	return &Failure{Code: CodeRecord, Reason: "record", Message: "the attachment's record could not be written", Details: err.Error(), Err: err}
}
