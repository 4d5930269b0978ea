package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/tunnel"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/source"
)

var _ = failpoint.Register("daemon.egress.acquired", "daemon.egress.applied", "daemon.egress.cleared")

// Egress is how pods reach networks outside besides their own interface: as clients of
// Egresses or, of their gateways, as those who forward. All methods may be called
// concurrently; Apply, Check and Clear of one record never are, but only while the lock of
// its container is held. Records that are given are not to be changed, nor what is returned
// later on.
type Egress interface {
	// Annotations are the keys of pods' annotations that are looked at, as
	// source.Source.Annotations. One that ends in "/" stands for all that begin with it.
	Annotations() []string
	// CheckWish refuses, before anything is done about an ADD, what no pod can have. The
	// error names the annotation and what was expected.
	CheckWish(req source.Request) error
	// Acquire returns what the pod is to have, once the operator said so: nil for one that
	// is to have nothing, at once where that is known on the node. When ctx ends first, or
	// where the pod's annotation names an Egress that it may not use, the error is an
	// *source.Exhausted that names the Egress and says why. It takes nothing: there is
	// nothing to give back after it. The state of what it returns is attachment.EgressSetUp.
	Acquire(ctx context.Context, req source.Request) (*attachment.Egress, error)
	// Why tells what the Acquire of key waits for; nil when none waits.
	Why(key attachment.Key) *source.Exhausted
	// Apply makes the pod's namespace as rec.Egress says, nil like one that has nothing, and
	// removes what else of Berth's egress is there. Addresses are rec.OwnAddrs() and
	// rec.OtherAddrs(), the interface is Key.IfName with its own MTU. It is idempotent and
	// finishes what is half done. Of errors egress.ErrNoFoU and those of datapath about the
	// namespace are told apart; so of Check, Clear and Supported.
	Apply(ctx context.Context, rec attachment.Record) error
	// Check tells how the kernel differs from rec.Egress, and changes nothing.
	Check(ctx context.Context, rec attachment.Record) error
	// Clear takes away all that Apply made. It is idempotent, and no error in a namespace
	// that is gone.
	Clear(ctx context.Context, rec attachment.Record) error
	// Supported tells whether the node's kernel can set up clients at all. Asked at start and
	// at the interval of repairs.
	Supported(ctx context.Context) error
	// News fires when a ready attachment may have to have another egress than before; nil:
	// never. It holds one token at most, so that all that is new is looked at after it.
	News() <-chan struct{}
	// Wanted returns what a ready attachment is to have by now, and whether that differs
	// from rec.Egress in anything but the state; false while it is not known, as before the
	// API server answered. Gateways that rec.Egress has keep their IDs. It is asked for every
	// record whenever News fires: it answers from memory.
	Wanted(rec attachment.Record) (egress *attachment.Egress, differ bool)
	// TakeUp says, before Run and once, which attachments are ready at a start. Those whose
	// egress is settled are set up as recorded. Of a pod of this node whose EgressClient
	// names another sandbox than theirs, that sandbox is gone.
	TakeUp(ready []attachment.Record)
	// Coming says that an attachment that is not ready yet is being set up as rec.Egress says, with
	// the addresses that it has by now: so that gateways may be told of it meanwhile. SetUp
	// follows, or Gone.
	Coming(rec attachment.Record)
	// Await returns once every gateway that new connections of the attachment may take serves it.
	// The error says which do not, when ctx ends or it is no use to wait for these. The attachment is
	// set up and its operator was told of it.
	Await(ctx context.Context, rec attachment.Record) error
	// SetUp says that a ready attachment is set up as rec.Egress says, nil included: at its
	// ADD, after each change and after each repair. The operator is told later, and only of
	// what is new to it: this does not wait for it. So of Failed and Gone.
	SetUp(rec attachment.Record)
	// Failed says that rec.Egress could not be set up, at an ADD, of which nothing stays then,
	// or for a pod that runs, and what it had before may be there still, in part. It is told
	// at each attempt. A person is to hear of a pod that runs: by the EgressClient's condition
	// and an Event of the Pod; of an ADD the daemon tells.
	Failed(rec attachment.Record, err error)
	// Gone says that the attachment is no more, after its record went: its addresses may soon
	// be another's. Told also of one that has no egress or never was ready, and before TakeUp.
	Gone(rec attachment.Record)
	// Run follows what the operator says, and tells it what there is to tell, until ctx
	// ends, and returns only then.
	Run(ctx context.Context) error
}

// errNoEgress is of a record with egress on a daemon that was started without it.
var errNoEgress = errors.New("the attachment reaches networks outside by an Egress, and this berthd is not configured to set that up")

// applyEgress sets up what a record says of egress, and returns it with that settled. The
// error is a Failure.
func (d *Daemon) applyEgress(ctx context.Context, rec attachment.Record) (attachment.Record, error) {
	if rec.Egress == nil {
		return rec, nil
	}
	if d.Egress == nil {
		return rec, egressFailure(rec, errNoEgress)
	}
	if err := d.Egress.Apply(ctx, rec); err != nil {
		d.Egress.Failed(rec, err)
		return rec, egressFailure(rec, err)
	}
	rec.Egress = settledEgress(rec.Egress)
	return rec, failpoint.Hit("daemon.egress.applied")
}

// settledEgress is what a record says of egress once it is set up: nothing where there is
// nothing.
func settledEgress(e *attachment.Egress) *attachment.Egress {
	if e == nil || len(e.Egresses) == 0 && !e.Forward {
		return nil
	}
	settled := *e
	settled.State = attachment.EgressSetUp
	return &settled
}

// changingEgress is what a record says of egress while that is being set up in the place of
// something else.
func changingEgress(e *attachment.Egress) *attachment.Egress {
	changing := attachment.Egress{}
	if e != nil {
		changing = *e
	}
	changing.State = attachment.EgressChanging
	return &changing
}

// clearEgress takes away what an attachment that ends has of egress. It holds up no pod
// that goes: all of it ends with the pod's namespace at the latest, and nothing of it is the
// node's.
func (d *Daemon) clearEgress(ctx context.Context, rec attachment.Record) error {
	if rec.Egress == nil || d.Egress == nil {
		return nil
	}
	if alive, err := d.netnsAlive(rec.Netns); !alive {
		if err != nil {
			d.Log.Warn("looking for the namespace of an egress that goes", "attachment", rec.Key.String(), "err", err)
		}
		return nil
	}
	if err := d.Egress.Clear(ctx, rec); err != nil {
		d.Log.Warn("what a pod had of egress stays in its namespace", "attachment", rec.Key.String(), "err", err)
		return nil
	}
	return failpoint.Hit("daemon.egress.cleared")
}

// egressDiffers tells how the kernel differs from what a record says of egress. Of one that is
// changing that is not known.
func (d *Daemon) egressDiffers(ctx context.Context, rec attachment.Record) error {
	switch {
	case rec.Egress == nil || rec.Egress.State != attachment.EgressSetUp:
		return nil
	case d.Egress == nil:
		return errNoEgress
	}
	if err := d.Egress.Check(ctx, rec); err != nil {
		return fmt.Errorf("egress: %w", err)
	}
	return nil
}

// tellSetUp says that an attachment is ready with its egress.
func (d *Daemon) tellSetUp(rec attachment.Record) {
	if d.Egress != nil {
		d.Egress.SetUp(rec)
	}
}

// tellGone says that an attachment is no more.
func (d *Daemon) tellGone(rec attachment.Record) {
	if d.Egress != nil {
		d.Egress.Gone(rec)
	}
}

// tellComing says that an attachment is being set up with egress.
func (d *Daemon) tellComing(rec attachment.Record) {
	if d.Egress != nil && rec.Egress != nil {
		d.Egress.Coming(rec)
	}
}

// awaitGateways returns once gateways serve a pod that is set up, so that its first packets get
// through. The pod starts all the same when they take longer than GatewayWait: what it sends again
// then finds its way. The error is a Failure, of one that need not start any more.
func (d *Daemon) awaitGateways(ctx context.Context, rec attachment.Record) error {
	if d.Egress == nil || rec.Egress == nil || len(rec.Egress.Egresses) == 0 || d.GatewayWait <= 0 {
		return nil
	}
	req := source.Request{Key: rec.Key, Pod: rec.Pod}
	return d.wait(ctx, req, time.Now().Add(d.GatewayWait), noGateways, func(ctx context.Context) error {
		err := d.Egress.Await(ctx, rec)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) && d.draining.Err() == nil {
			return context.Cause(ctx)
		}
		d.Log.Info("a pod starts before all gateways serve it", forLog(rec, "egresses", egressNames(rec), "err", err)...)
		return nil
	})
}

// egressNames are the Egresses of a record, for people.
func egressNames(rec attachment.Record) (names []string) {
	if rec.Egress == nil {
		return nil
	}
	for _, e := range rec.Egress.Egresses {
		names = append(names, e.Namespace+"/"+e.Name)
	}
	return names
}

// egressFailure says what came of something that was to be set up of egress.
func egressFailure(rec attachment.Record, err error) error {
	what := fmt.Sprintf("setting up the pod's egress by %v", egressNames(rec))
	say := func(code uint, reason string) error {
		return &Failure{Code: code, Reason: reason, Message: what, Details: err.Error(), Err: err}
	}
	if ex, ok := errors.AsType[*source.Exhausted](err); ok {
		return say(types.ErrTryAgainLater, ex.Reason)
	}
	switch {
	case errors.Is(err, tunnel.ErrNoFoU):
		return say(types.ErrTryAgainLater, "no-fou")
	case errors.Is(err, errNoEgress):
		return say(CodeKernel, "no-egress")
	case errors.Is(err, datapath.ErrNoNetns), errors.Is(err, datapath.ErrNotNetns):
		return say(types.ErrInvalidNetNS, "netns-missing")
	}
	return say(CodeKernel, "egress")
}
