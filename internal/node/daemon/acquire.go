package daemon

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon/cnierror"
	"github.com/berthnet/berth/internal/node/daemon/part"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/source"
)

// replyMargin is the part of the caller's time that is reserved for the reply to an ADD that timed out.
const replyMargin = 500 * time.Millisecond

// noAddress is the prefix of the error of an ADD that timed out waiting for an address.
const noAddress = "no address for the pod: "

// acquirer lets ADDs wait for addresses and for the requirements of parts.
type acquirer struct {
	source   source.Source
	parts    parts
	warmWait time.Duration // for an address
	draining context.Context
	waits    *waits
	adds     waitingADDs
	// fresh is called before an address is acquired.
	fresh func(context.Context)
}

func newAcquirer(draining context.Context, o Options) *acquirer {
	return &acquirer{source: o.Source, parts: o.Parts, warmWait: o.WarmWait, draining: draining, waits: newWaits(o.Clock), fresh: func(context.Context) {}}
}

// annotations returns the keys of the annotations that the source and the parts read.
func (a *acquirer) annotations() []string {
	keys := slices.Clone(a.source.Annotations())
	for _, p := range a.parts {
		keys = append(keys, p.About().Annotations...)
	}
	return keys
}

// checkOptions rejects invalid requests.
func (a *acquirer) checkOptions(req attachment.Request) error {
	if err := a.source.CheckOptions(req.Options); err != nil {
		return err
	}
	for _, p := range a.parts {
		if err := p.CheckOptions(req); err != nil {
			return err
		}
	}
	return nil
}

// acquire returns the record of an attachment with its parts and its lease. Parts come first, so that
// no address is held while ports are created or the operator is busy. No address is leased if a NIC is
// the attachment's own interface. until is the time until which the ADD may wait for parts later on.
func (a *acquirer) acquire(ctx context.Context, want attachment.Record, options attachment.PodOptions) (_ attachment.Record, until time.Time, err error) {
	req := attachment.Request{Key: want.Key, Pod: want.Pod, Options: options}
	begin := time.Now()
	until = begin.Add(a.warmWait)
	for _, p := range a.parts {
		about := p.About()
		longer := begin.Add(max(a.warmWait, about.Wait))
		if longer.Before(until) {
			longer = until
		}
		has := false
		err = a.wait(ctx, req, longer, about.NotAcquired, func(ctx context.Context) (err error) {
			has, err = p.Acquire(ctx, req, &want)
			return err
		})
		if err != nil {
			return want, until, err
		}
		if has {
			until = longer
		}
	}
	if want.First() != nil {
		return want, until, nil
	}
	err = a.wait(ctx, req, until, noAddress, func(ctx context.Context) (err error) {
		a.fresh(ctx)
		want.Lease, err = a.source.Acquire(ctx, req)
		return err
	})
	if err != nil {
		return want, until, err
	}
	if want.Chained == nil && want.Lease.Empty() {
		a.source.Cancel(want.Key)
		return want, until, cnierror.New(types.ErrInvalidNetworkConfig, "no-nic", "no NIC of the pod is named %s, and pods of this node have no other interface than their NICs", want.Key.IfName)
	}
	return want, until, nil
}

// prepare returns once parts can be set up. The time limit of kernel work does not run meanwhile, and
// a DEL ends the wait. Parts are prepared in reverse order, so that gateways learn of a pod while it
// waits for the links of its NICs.
func (a *acquirer) prepare(ctx context.Context, rec attachment.Record, until time.Time) error {
	for _, p := range slices.Backward(a.parts) {
		if err := a.wait(ctx, attachment.Request{Key: rec.Key, Pod: rec.Pod}, until, p.About().NotPrepared, func(ctx context.Context) error { return p.Prepare(ctx, rec) }); err != nil {
			return err
		}
	}
	return nil
}

// await returns once parts that are set up carry traffic.
func (a *acquirer) await(ctx context.Context, rec attachment.Record, until time.Time) error {
	for _, p := range a.parts {
		about, end := p.About(), until
		if about.AwaitLimit > 0 {
			end = time.Now().Add(about.AwaitLimit)
		}
		if err := a.wait(ctx, attachment.Request{Key: rec.Key, Pod: rec.Pod}, end, about.NotServed, func(ctx context.Context) error { return p.Await(ctx, rec) }); err != nil {
			return err
		}
	}
	return nil
}

// wait runs something until it returns, until passes, the caller cancels, a DEL arrives or the daemon shuts
// down. The error is a Failure that begins with lacks, unless the caller cancelled.
func (a *acquirer) wait(ctx context.Context, req attachment.Request, until time.Time, lacks string, something func(context.Context) error) error {
	if deadline, ok := ctx.Deadline(); ok && deadline.Add(-replyMargin).Before(until) {
		until = deadline.Add(-replyMargin)
	}
	wctx, end := a.waits.add(ctx, req)
	defer end()
	wctx, drained := context.WithCancelCause(wctx)
	defer drained(nil)
	defer context.AfterFunc(a.draining, func() { drained(part.ErrDraining) })()
	wctx, cancel := context.WithDeadline(wctx, until)
	defer cancel()
	err := something(wctx)
	switch ex, _ := errors.AsType[*source.Exhausted](err); {
	case err == nil:
		return nil
	case a.draining.Err() != nil:
		return &cnierror.Failure{Code: types.ErrTryAgainLater, Reason: "draining", Message: "berthd is being restarted; try again", Ending: true}
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(context.Cause(wctx), errDeleted):
		return cnierror.New(types.ErrTryAgainLater, "deleted", "%s%s", lacks, errDeleted)
	case ex != nil && lacks == noAddress:
		return &cnierror.Failure{Code: types.ErrTryAgainLater, Reason: ex.Reason, Message: lacks + ex.Message, Err: ex}
	case ex != nil:
		return &cnierror.Failure{Code: types.ErrTryAgainLater, Reason: ex.Reason, Message: lacks + ex.Message, Err: ex.Err} // wrapping ex itself would report a missing address
	}
	return &cnierror.Failure{Code: types.ErrTryAgainLater, Reason: "source", Message: lacks + err.Error(), Err: err}
}

// longestWait is the maximum wait of an ADD for its address or a part.
func (a *acquirer) longestWait() time.Duration {
	longest := a.warmWait
	for _, p := range a.parts {
		longest = max(longest, p.About().Wait)
	}
	return longest
}

// why returns what an ADD waits for, and whether that is an address; nil if none waits.
func (a *acquirer) why(key attachment.Key) (ex *source.Exhausted, address bool) {
	for _, p := range a.parts {
		if ex := p.Why(key); ex != nil {
			return ex, false
		}
	}
	return a.source.Why(key), true
}

// errDeleted is the cause when a DEL cancels the wait of its ADD.
var errDeleted = errors.New("a DEL of the attachment arrived while its ADD was waiting")

// waits lets a DEL cancel the wait of its ADD. Without it the DEL would have to wait just as long, because
// the ADD holds the container's lock.
type waits struct {
	clock clock.Clock

	mu   sync.Mutex                    // guards both; never held during I/O
	adds map[attachment.Key]waitingADD // at most one per key, because of the lock
	dels map[attachment.Key]int        // DELs waiting for the container's lock
}

// waitingADD is an ADD that waits for its address or a part.
type waitingADD struct {
	pod   attachment.Pod
	since time.Time
	end   context.CancelCauseFunc
}

func newWaits(clk clock.Clock) *waits {
	return &waits{clock: clk, adds: map[attachment.Key]waitingADD{}, dels: map[attachment.Key]int{}}
}

// of returns the waiting ADDs of a pod, oldest first, each with its reason from why.
func (w *waits) of(namespace, name string, why func(attachment.Key) (_ *source.Exhausted, address bool)) []introspect.Waiting {
	out, keys := []introspect.Waiting{}, []attachment.Key{}
	w.mu.Lock()
	for key, a := range w.adds {
		if a.pod.Namespace == namespace && a.pod.Name == name {
			out, keys = append(out, introspect.Waiting{ContainerID: key.ContainerID, Interface: key.IfName, Since: a.since}), append(keys, key)
		}
	}
	w.mu.Unlock()
	for i, key := range keys {
		if ex, _ := why(key); ex != nil {
			out[i].Reason, out[i].Message = ex.Reason, ex.Message
		}
	}
	slices.SortFunc(out, func(a, b introspect.Waiting) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.ContainerID+a.Interface, b.ContainerID+b.Interface))
	})
	return out
}

// add returns a context for the wait of an ADD. A DEL cancels it with errDeleted, including one that arrived
// while this ADD waited for the lock. end must be called once.
func (w *waits) add(ctx context.Context, req attachment.Request) (_ context.Context, end func()) {
	key := req.Key
	ctx, cancel := context.WithCancelCause(ctx)
	since := w.clock.Now().UTC()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.adds[key] = waitingADD{req.Pod, since, cancel}
	if w.dels[key] > 0 {
		cancel(errDeleted)
	}
	return ctx, func() {
		w.mu.Lock()
		delete(w.adds, key)
		w.mu.Unlock()
		cancel(nil)
	}
}

// del cancels the wait of an ADD of key, now and until end is called.
func (w *waits) del(key attachment.Key) (end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dels[key]++
	if a, ok := w.adds[key]; ok {
		a.end(errDeleted)
	}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.dels[key]--; w.dels[key] == 0 {
			delete(w.dels, key)
		}
	}
}

// A waiting ADD occupies one of the connections to the plugin's socket. These bounds keep
// connections free for calls that are answered immediately, such as DEL and STATUS.

const (
	// maxWaiting is the maximum number of ADDs that wait at a time for an address, a lock or the start of the
	// daemon. The kubelet retries rejected ADDs.
	maxWaiting = pluginConnections * 3 / 4
	// crowdedWait bounds the wait of each ADD beyond maxWaiting, which is enough to get an address that is
	// free.
	crowdedWait = 100 * time.Millisecond
)

// waitingADDs counts the ADDs in flight, and bounds the wait of those beyond maxWaiting.
type waitingADDs struct{ count atomic.Int64 }

// errCrowded rejects an ADD that would wait beyond maxWaiting.
var errCrowded = cnierror.New(types.ErrTryAgainLater, "crowded", "%d ADDs are already waiting on this node; try again", maxWaiting)

// enter returns the context in which an ADD may wait. leave must be called once.
func (w *waitingADDs) enter(ctx context.Context) (_ context.Context, leave func()) {
	if w.count.Add(1) <= maxWaiting {
		return ctx, func() { w.count.Add(-1) }
	}
	ctx, cancel := context.WithTimeoutCause(ctx, crowdedWait, errCrowded)
	return ctx, func() {
		w.count.Add(-1)
		cancel()
	}
}
