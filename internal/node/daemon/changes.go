package daemon

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/retry"
)

const (
	// changesAtOnce is how many attachments are changed at one moment: each may wait
	// for Open vSwitch, or for a port to carry packets.
	changesAtOnce = 16

	// changeMost bounds the wait after a change that failed.
	changeMost = 30 * time.Second
)

// changes has what ready attachments have besides their addresses changed where that is to
// be other than it is: one change of an attachment at a time, beside each other, and again
// when they failed.
type changes struct {
	changing
	daemon *Daemon
	ended  retry.Signal // a change ended
	wg     sync.WaitGroup

	mu  sync.Mutex // guards all below, memory only
	all map[attachment.Key]*change
}

// changing is what changes are about: NICs, or egress.
type changing struct {
	// wanted tells whether there is something to change about a ready record, and what is
	// wanted, by which a change that failed is known again. It answers from memory.
	wanted func(rec attachment.Record) (what any, differ bool)
	// change makes it so. Nothing is to be changed after it, if there was no error. A cancelled
	// context tells that something else is wanted, or nothing any more.
	change func(ctx context.Context, key attachment.Key) error
	// done hears how each ended; news: with another error than the one before.
	done func(rec attachment.Record, err error, news bool)
}

// change is one that is under way, or that did not come to what is wanted.
type change struct {
	end    context.CancelFunc // has it wait for nothing any more; nil: it is not under way
	wanted any                // that it was about
	failed string             // empty: it did not
	wait   retry.Backoff
}

func newChanges(d *Daemon, of changing) *changes {
	return &changes{changing: of, daemon: d, ended: retry.NewSignal(), all: map[attachment.Key]*change{}}
}

// begin begins the changes that are due, and tells when others are; zero: when there is
// news, or one ended.
func (c *changes) begin(ctx context.Context) (next time.Time) {
	d := c.daemon
	now := d.Clock.Now()
	records := d.Store.Records()
	c.forget(records)
	for _, rec := range records {
		if rec.State != attachment.Ready || ctx.Err() != nil {
			continue
		}
		wanted, differ := c.wanted(rec)
		if !differ {
			c.drop(rec.Key)
			continue
		}
		during, at := c.start(ctx, rec.Key, wanted, now)
		next = retry.Earliest(time.Time{}, next, at)
		if during == nil {
			continue
		}
		c.wg.Go(func() { c.end(rec, c.change(during, rec.Key)) })
	}
	return next
}

// start notes that a change is under way, which goes on while the context lasts that it
// returns; nil: one is under way already, or it is to be waited until a moment. One that
// waits while something else is wanted by now need not any longer.
func (c *changes) start(ctx context.Context, key attachment.Key, wanted any, now time.Time) (_ context.Context, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.all[key]
	same := one != nil && reflect.DeepEqual(one.wanted, wanted)
	switch {
	case one != nil && one.end != nil:
		if !same {
			one.end()
		}
		return nil, time.Time{}
	case c.underWay() >= changesAtOnce:
		return nil, time.Time{} // when one of them has ended
	case same && one.wait.Until.After(now):
		return nil, one.wait.Until
	case !same:
		one = &change{wanted: wanted}
		c.all[key] = one
	}
	ctx, one.end = context.WithCancel(ctx)
	return ctx, time.Time{}
}

// underWay is how many changes are. c.mu is held.
func (c *changes) underWay() (n int) {
	for _, one := range c.all {
		if one.end != nil {
			n++
		}
	}
	return n
}

// end notes what came of a change. If all is as it is to be, nothing is wanted any more; else
// it is tried again after a wait.
func (c *changes) end(rec attachment.Record, err error) {
	defer c.ended.Set()
	d := c.daemon
	c.mu.Lock()
	one := c.all[rec.Key]
	one.end()
	one.end = nil
	one.wait.Fail(d.Clock.Now(), retry.First, changeMost)
	news := false
	if err != nil {
		news, one.failed = one.failed != err.Error(), err.Error()
	}
	c.mu.Unlock()
	if d.draining.Err() != nil || errors.Is(err, context.Canceled) {
		return // something else is wanted by now, or the daemon ends
	}
	c.done(rec, err, news)
}

// drop forgets an attachment that is as it is to be.
func (c *changes) drop(key attachment.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one := c.all[key]; one != nil && one.end == nil {
		delete(c.all, key)
	}
}

// forget drops attachments that are no more.
func (c *changes) forget(records []attachment.Record) {
	there := make(map[attachment.Key]bool, len(records))
	for _, rec := range records {
		there[rec.Key] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, one := range c.all {
		if !there[key] && one.end == nil {
			delete(c.all, key)
		}
	}
}

// wait returns once no change is under way. None may begin any more.
func (c *changes) wait() { c.wg.Wait() }
