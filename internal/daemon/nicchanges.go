package daemon

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/attachment"
	"github.com/berthnet/berth/internal/retry"
)

const (
	// changesAtOnce is how many attachments have NICs changed at one moment: each may wait
	// for Open vSwitch, or for a port to carry packets.
	changesAtOnce = 16

	// changeMost bounds the wait after a change that failed.
	changeMost = 30 * time.Second
)

// nicChanges has the NICs of ready attachments changed where they are to be others: one
// change of an attachment at a time, beside each other, and again when they failed.
type nicChanges struct {
	daemon *Daemon
	ended  retry.Signal // a change ended
	wg     sync.WaitGroup

	mu  sync.Mutex // guards all below, memory only
	all map[attachment.Key]*nicChange
}

// nicChange is one that is under way, or that did not come to what is wanted.
type nicChange struct {
	end    context.CancelFunc // has it wait for nothing any more; nil: it is not under way
	wanted []attachment.NIC   // that it was about
	failed string             // empty: it did not
	wait   retry.Backoff
}

func newNICChanges(d *Daemon) *nicChanges {
	return &nicChanges{daemon: d, ended: retry.NewSignal(), all: map[attachment.Key]*nicChange{}}
}

// begin begins the changes that are due, and tells when others are; zero: when there is
// news, or one ended.
func (c *nicChanges) begin(ctx context.Context) (next time.Time) {
	d := c.daemon
	now := d.Clock.Now()
	records := d.Store.Records()
	c.forget(records)
	for _, rec := range records {
		if rec.State != attachment.Ready || ctx.Err() != nil {
			continue
		}
		wanted, differ := d.NICs.Wanted(rec)
		if !differ {
			c.drop(rec.Key)
			continue
		}
		change, at := c.start(ctx, rec.Key, asked(wanted), now)
		next = retry.Earliest(time.Time{}, next, at)
		if change == nil {
			continue
		}
		c.wg.Go(func() { c.end(rec, d.changeNICs(change, rec.Key)) })
	}
	return next
}

// start notes that a change is under way, which goes on while the context lasts that it
// returns; nil: one is under way already, or it is to be waited until a moment. One that
// waits while something else is wanted by now need not any longer.
func (c *nicChanges) start(ctx context.Context, key attachment.Key, wanted []attachment.NIC, now time.Time) (_ context.Context, at time.Time) {
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
		one = &nicChange{wanted: wanted}
		c.all[key] = one
	}
	ctx, one.end = context.WithCancel(ctx)
	return ctx, time.Time{}
}

// underWay is how many changes are. c.mu is held.
func (c *nicChanges) underWay() (n int) {
	for _, one := range c.all {
		if one.end != nil {
			n++
		}
	}
	return n
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

// end notes what came of a change. If all is as it is to be, nothing is wanted any more; else
// it is tried again after a wait.
func (c *nicChanges) end(rec attachment.Record, err error) {
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
	d.Metrics.countNICRepair(nicChanged, err)
	if news {
		d.Log.Warn("changing the NICs of a running pod, will try again", forLog(rec, "err", err)...)
	}
}

// drop forgets an attachment whose NICs are as they are to be.
func (c *nicChanges) drop(key attachment.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one := c.all[key]; one != nil && one.end == nil {
		delete(c.all, key)
	}
}

// forget drops attachments that are no more.
func (c *nicChanges) forget(records []attachment.Record) {
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
func (c *nicChanges) wait() { c.wg.Wait() }
