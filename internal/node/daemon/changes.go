package daemon

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/retry"
)

const (
	// changesAtOnce is the number of concurrent changes: each may wait for Open vSwitch, or for
	// a port to become active.
	changesAtOnce = 16

	// changeMost bounds the backoff after a failed change.
	changeMost = 30 * time.Second
)

// changes brings one part of ready attachments to its desired state: one change at a time per attachment,
// several attachments concurrently, with retries after a backoff.
type changes struct {
	changing
	store    *attachment.Store
	clock    clock.Clock
	draining context.Context
	ended    retry.Signal // a change ended
	wg       sync.WaitGroup

	mu       sync.Mutex // guards inFlight; never held during I/O
	inFlight retry.InFlight[attachment.Key, change]
}

// changing holds the callbacks of changes.
type changing struct {
	// desired is part.Part.Desired.
	desired func(rec attachment.Record) (what any, differs bool)
	// change applies desired to an attachment. After it returns nil, nothing differs. Its context is
	// cancelled when the desired state changes or nothing is desired any longer.
	change func(ctx context.Context, key attachment.Key) error
	// done is called when a change has ended; news means that its error differs from the previous one.
	done func(rec attachment.Record, err error, news bool)
}

// change is a running or failed change.
type change struct {
	cancel  context.CancelFunc
	desired any    // target of the change
	failed  string // last error; empty: none
}

func newChanges(draining context.Context, store *attachment.Store, clk clock.Clock, of changing) *changes {
	return &changes{
		changing: of, store: store, clock: clk, draining: draining, ended: retry.NewSignal(),
		inFlight: retry.NewInFlight[attachment.Key, change](),
	}
}

// begin starts the changes that are due, and returns the time to call it again. Zero means after DesiredChanged
// or the end of a change.
func (c *changes) begin(ctx context.Context) (next time.Time) {
	now := c.clock.Now()
	desired := map[attachment.Key]any{}
	records := c.store.Records()
	for _, rec := range records {
		if rec.State != attachment.Ready {
			continue
		}
		if what, differs := c.desired(rec); differs {
			desired[rec.Key] = what
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inFlight.Retain(func(key attachment.Key) bool { _, ok := desired[key]; return ok })
	for _, rec := range records {
		what, ok := desired[rec.Key]
		if !ok || ctx.Err() != nil {
			continue
		}
		during, at := c.start(ctx, rec.Key, what, now)
		next = retry.Earliest(time.Time{}, next, at)
		if during != nil {
			c.wg.Go(func() { c.end(rec, c.change(during, rec.Key)) })
		}
	}
	return next
}

// start registers a change as running and returns its context. It returns nil if one is already running or
// the change backs off until at. It cancels a running change when the desired state has changed. c.mu is held.
func (c *changes) start(ctx context.Context, key attachment.Key, desired any, now time.Time) (_ context.Context, at time.Time) {
	one := c.inFlight.Of(key)
	running := c.inFlight.Running(func(k attachment.Key) bool { return k == key }) > 0
	if !reflect.DeepEqual(one.Value.desired, desired) {
		if running {
			one.Value.cancel()
			return nil, time.Time{}
		}
		one.Backoff, one.Value = retry.Backoff{}, change{desired: desired}
	}
	if !running && c.inFlight.Running(nil) >= changesAtOnce {
		return nil, time.Time{} // call again when a change has ended
	}
	if one, at = c.inFlight.Start(key, now); one == nil {
		return nil, at
	}
	ctx, one.Value.cancel = context.WithCancel(ctx)
	return ctx, time.Time{}
}

// end registers the end of a change. The next begin retries it after its backoff if something still
// differs.
func (c *changes) end(rec attachment.Record, err error) {
	defer c.ended.Set()
	c.mu.Lock()
	one := c.inFlight.End(rec.Key)
	one.Value.cancel()
	one.Fail(c.clock.Now(), retry.First, changeMost)
	news := false
	if err != nil {
		news, one.Value.failed = one.Value.failed != err.Error(), err.Error()
	}
	c.mu.Unlock()
	if c.draining.Err() != nil || errors.Is(err, context.Canceled) {
		return // the desired state has changed, or the daemon is shutting down
	}
	c.done(rec, err, news)
}

// wait waits for all running changes. No new change may start afterwards.
func (c *changes) wait() { c.wg.Wait() }
