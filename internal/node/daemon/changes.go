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
	// changesAtOnce is how many attachments are changed concurrently: each may wait
	// for Open vSwitch, or for a port to carry packets.
	changesAtOnce = 16

	// changeMost bounds the wait after a change that failed.
	changeMost = 30 * time.Second
)

// changes brings one part of ready attachments to what they should have: one change of an attachment
// at a time, those of several concurrently, and again after a wait when they failed.
type changes struct {
	changing
	store    *attachment.Store
	clock    clock.Clock
	draining context.Context
	ended    retry.Signal // a change ended
	wg       sync.WaitGroup

	mu       sync.Mutex // guards inFlight, memory only
	inFlight retry.InFlight[attachment.Key, change]
}

// changing is what changes are about.
type changing struct {
	// desired is part.Part.Desired.
	desired func(rec attachment.Record) (what any, differs bool)
	// change applies desired to an attachment. After it returned nil nothing differs. Its context is
	// cancelled when something else is desired, or nothing.
	change func(ctx context.Context, key attachment.Key) error
	// done is called when a change ended; news: with another error than the one before.
	done func(rec attachment.Record, err error, news bool)
}

// change is one that runs, or that failed.
type change struct {
	cancel  context.CancelFunc
	desired any    // that it is about
	failed  string // its error; empty: none
}

func newChanges(draining context.Context, store *attachment.Store, clk clock.Clock, of changing) *changes {
	return &changes{
		changing: of, store: store, clock: clk, draining: draining, ended: retry.NewSignal(),
		inFlight: retry.NewInFlight[attachment.Key, change](),
	}
}

// begin starts the changes that are due, and returns when to call it again; zero: after DesiredChanged, or when
// a change ended.
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

// start registers a change as running, and returns its context; nil: one runs already, or the change
// backs off until at. It cancels a running change when something else is desired by now. c.mu is held.
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
		return nil, time.Time{} // when one of them has ended
	}
	if one, at = c.inFlight.Start(key, now); one == nil {
		return nil, at
	}
	ctx, one.Value.cancel = context.WithCancel(ctx)
	return ctx, time.Time{}
}

// end registers that a change ended. The next begin retries it after its backoff if something still
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
		return // something else is desired by now, or the daemon ends
	}
	c.done(rec, err, news)
}

// wait returns once no change runs. None may start any more.
func (c *changes) wait() { c.wg.Wait() }
