package daemon

import (
	"context"
	"errors"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/source"
)

// replyMargin is kept of the caller's time to say what there was not.
const replyMargin = 500 * time.Millisecond

// What an ADD may wait for in vain, as its error begins.
const (
	noAddress = "no address for the pod: "
	noNICs    = "no NICs for the pod: "
	noLinks   = "the pod's NICs are not on the node yet: "
	noTraffic = "the pod's NICs carry no packets yet: "
	noEgress  = "no egress for the pod: "
	// noGateways is of an ADD that nobody needs any more.
	noGateways = "the pod's gateways do not serve it yet: "
)

// acquire gets what an attachment is to have, and returns its record with that: NICs
// and egress first, so that no address is held while ports are made or the operator is waited
// for, and none is taken where a NIC is the attachment's own interface. until is the moment up to which an ADD with NICs or egress may go on to wait.
func (d *Daemon) acquire(ctx context.Context, want attachment.Record, wish source.Wish) (_ attachment.Record, until time.Time, err error) {
	req := source.Request{Key: want.Key, Pod: want.Pod, Wish: wish}
	begun := time.Now()
	until = begun.Add(d.WarmWait)
	if d.NICs != nil {
		longer := begun.Add(max(d.WarmWait, d.NICWait))
		err = d.wait(ctx, req, longer, noNICs, func(ctx context.Context) (err error) {
			want.NICs, err = d.NICs.Acquire(ctx, req)
			return err
		})
		if err != nil {
			return want, until, err
		}
		if len(want.NICs) > 0 {
			until = longer
			if err := failpoint.Hit("daemon.nics.acquired"); err != nil {
				return want, until, err
			}
		}
	}
	longer := begun.Add(max(d.WarmWait, d.EgressWait))
	if longer.Before(until) {
		longer = until
	}
	if want.Egress, err = d.acquireEgress(ctx, req, longer); err != nil {
		return want, until, err
	}
	if want.Egress != nil {
		until = longer
	}
	if want.First() != nil {
		return want, until, nil
	}
	err = d.wait(ctx, req, until, noAddress, func(ctx context.Context) (err error) {
		want.Lease, err = d.Source.Acquire(ctx, req)
		return err
	})
	if err != nil {
		return want, until, err
	}
	if err := checkInterface(want); err != nil {
		d.Source.Cancel(want.Key)
		return want, until, err
	}
	return want, until, nil
}

// acquireEgress gets what is to be set up of egress; nil: nothing.
func (d *Daemon) acquireEgress(ctx context.Context, req source.Request, until time.Time) (egress *attachment.Egress, err error) {
	if d.Egress == nil {
		return nil, nil
	}
	err = d.wait(ctx, req, until, noEgress, func(ctx context.Context) (err error) {
		egress, err = d.Egress.Acquire(ctx, req)
		return err
	})
	if err != nil || egress == nil {
		return nil, err
	}
	return egress, failpoint.Hit("daemon.egress.acquired")
}

// checkInterface refuses an attachment that lacks its own interface, the one that the runtime
// asks for.
func checkInterface(want attachment.Record) error {
	if want.Chained == nil && want.First() == nil && want.Lease.Empty() {
		return failf(types.ErrInvalidNetworkConfig, "no-nic", "no NIC of the pod is named %s, and pods of this node have no other interface than their NICs", want.Key.IfName)
	}
	return nil
}

// wait has an ADD wait for something that others bring, no longer than until, the
// caller lets it, no DEL comes, and the daemon lives. The error is a Failure that
// begins with lacks, unless the caller went.
func (d *Daemon) wait(ctx context.Context, req source.Request, until time.Time, lacks string, something func(context.Context) error) error {
	if deadline, ok := ctx.Deadline(); ok && deadline.Add(-replyMargin).Before(until) {
		until = deadline.Add(-replyMargin)
	}
	wctx, end := d.waits.add(ctx, req)
	defer end()
	wctx, cancel := context.WithDeadline(wctx, until)
	defer cancel()
	defer context.AfterFunc(d.draining, cancel)()
	err := something(wctx)
	switch ex, _ := errors.AsType[*source.Exhausted](err); {
	case err == nil:
		return nil
	case d.draining.Err() != nil:
		return &Failure{Code: types.ErrTryAgainLater, Reason: "draining", Message: "berthd is being restarted; try again", Ending: true}
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(context.Cause(wctx), errDeleted):
		return failf(types.ErrTryAgainLater, "deleted", "%s%s", lacks, errDeleted)
	case ex != nil && lacks == noAddress:
		return &Failure{Code: types.ErrTryAgainLater, Reason: ex.Reason, Message: lacks + ex.Message, Err: ex}
	case ex != nil:
		return &Failure{Code: types.ErrTryAgainLater, Reason: ex.Reason, Message: lacks + ex.Message, Err: ex.Err} // Err is of addresses
	}
	return failf(types.ErrTryAgainLater, "source", "%s%s", lacks, err)
}

// why tells what an ADD waits for, and whether that is an address; nil when none waits.
func (d *Daemon) why(key attachment.Key) (ex *source.Exhausted, address bool) {
	if d.NICs != nil {
		if ex := d.NICs.Why(key); ex != nil {
			return ex, false
		}
	}
	if d.Egress != nil {
		if ex := d.Egress.Why(key); ex != nil {
			return ex, false
		}
	}
	return d.Source.Why(key), true
}
