package daemon

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/attachment"
	"github.com/berthnet/berth/internal/clock"
)

// coolingSlack keeps a cooling record a little longer than the source keeps
// the address back, so that the record never ends first.
const coolingSlack = time.Second

// coolingRecords removes the records of addresses that have cooled. Which
// address may be handed out is the source's to know; the records only carry
// that knowledge over a restart.
type coolingRecords struct {
	store  *attachment.Store
	period func() time.Duration
	clock  clock.Clock
	log    *slog.Logger
	locks  *keyLocks     // by address: held while its record is written or removed
	wake   chan struct{} // capacity 1: the queue grew

	mu    sync.Mutex // guards queue
	queue []cooled   // by released
}

type cooled struct {
	addr     netip.Addr
	released time.Duration // boot clock
}

// put writes the record of an address that is being released.
func (c *coolingRecords) put(ctx context.Context, rec attachment.Cooling) error {
	unlock, err := c.locks.lock(ctx, rec.Addr.String())
	if err != nil {
		return err
	}
	defer unlock()
	return c.store.PutCooling(rec)
}

// add queues the removal of records that exist.
func (c *coolingRecords) add(released time.Duration, addrs ...netip.Addr) {
	c.mu.Lock()
	for _, a := range addrs {
		c.queue = append(c.queue, cooled{a, released})
	}
	slices.SortStableFunc(c.queue, func(a, b cooled) int { return int(a.released - b.released) })
	c.mu.Unlock()
	signal(c.wake)
}

// run removes records as they fall due, until ctx ends.
func (c *coolingRecords) run(ctx context.Context) {
	for {
		var due <-chan time.Time
		if wait, more := c.removeDue(ctx); more {
			due = c.clock.After(wait)
		}
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		case <-due:
		}
	}
}

// removeDue removes what is due and tells how long until the next is.
func (c *coolingRecords) removeDue(ctx context.Context) (wait time.Duration, more bool) {
	for {
		c.mu.Lock()
		if len(c.queue) == 0 {
			c.mu.Unlock()
			return 0, false
		}
		first := c.queue[0]
		wait = first.released + c.period() + coolingSlack - c.clock.Boot()
		if wait > 0 {
			c.mu.Unlock()
			return wait, true
		}
		c.queue = c.queue[1:]
		c.mu.Unlock()
		c.remove(ctx, first)
	}
}

// remove leaves a record alone that a later release of the address wrote.
func (c *coolingRecords) remove(ctx context.Context, done cooled) {
	unlock, err := c.locks.lock(ctx, done.addr.String())
	if err != nil {
		return
	}
	defer unlock()
	rec, ok := c.store.Cooling(done.addr)
	if !ok || rec.ReleasedBoot > done.released {
		return
	}
	if err := c.store.DeleteCooling(done.addr); err != nil {
		c.log.Error("removing a cooling record", "address", done.addr, "err", err)
	}
}
