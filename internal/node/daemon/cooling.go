package daemon

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/retry"
)

// coolingSlack keeps a cooling record longer than the source withholds the address, by one to two times
// this duration, so that the record never expires first.
const coolingSlack = time.Second

// coolingRecords removes the records of addresses that have cooled. The source decides which addresses
// may be leased; the records preserve this across restarts.
type coolingRecords struct {
	store  *attachment.Store
	period func() time.Duration
	clock  clock.Clock
	log    *slog.Logger
	locks  *keyLocks    // by address: held while its record is written or removed
	wake   retry.Signal // set when the queue has grown

	mu    sync.Mutex // guards queue
	queue []cooled   // ordered by released
}

func newCoolingRecords(o Options) *coolingRecords {
	return &coolingRecords{store: o.Store, period: o.Source.CoolingPeriod, clock: o.Clock, log: o.Log, locks: newKeyLocks(), wake: retry.NewSignal()}
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

// begin writes the records of addresses that are being released, with the other fields of like. If there
// is no space for one it writes the others, and returns the error as full.
func (c *coolingRecords) begin(ctx context.Context, addrs []netip.Addr, like attachment.Cooling) (full, err error) {
	like.ReleasedBoot = c.clock.Boot()
	for _, like.Addr = range addrs {
		if err := c.put(ctx, like); attachment.IsNoSpace(err) {
			full = err
		} else if err != nil {
			return nil, recordFailure(err)
		}
	}
	return full, nil
}

// add queues the removal of records that exist.
func (c *coolingRecords) add(released time.Duration, addrs ...netip.Addr) {
	c.mu.Lock()
	for _, a := range addrs {
		c.queue = append(c.queue, cooled{a, released})
	}
	slices.SortStableFunc(c.queue, func(a, b cooled) int { return int(a.released - b.released) })
	c.mu.Unlock()
	c.wake.Set()
}

// run removes records when they are due, until ctx ends.
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

// removeDue removes due records, and returns the time until the next one is due. It includes records that
// are due within coolingSlack, so that the list of cooled addresses is written at most once in that time.
func (c *coolingRecords) removeDue(ctx context.Context) (wait time.Duration, more bool) {
	c.mu.Lock()
	boot, keep := c.clock.Boot(), c.period()+coolingSlack
	due := 0
	if len(c.queue) > 0 && c.queue[0].released+keep+coolingSlack <= boot {
		due = len(c.queue)
		if i := slices.IndexFunc(c.queue, func(q cooled) bool { return q.released+keep > boot }); i >= 0 {
			due = i
		}
	}
	done := slices.Clone(c.queue[:due])
	c.queue = c.queue[due:]
	if more = len(c.queue) > 0; more {
		wait = c.queue[0].released + keep + coolingSlack - boot
	}
	c.mu.Unlock()
	c.end(ctx, done)
	return wait, more
}

// end moves addresses from the cooling records to the list of freed addresses, which keeps the order
// in which they may be leased again.
func (c *coolingRecords) end(ctx context.Context, done []cooled) {
	freed := make([]attachment.Freed, len(done))
	for i, d := range done {
		freed[i] = attachment.Freed{Addr: d.addr, ReleasedBoot: d.released}
	}
	if err := c.store.AddFreed(freed); err != nil {
		c.log.Warn("recording cooled addresses failed; after a restart they may be leased in another order", "err", err)
	}
	for _, d := range done {
		c.remove(ctx, d)
	}
}

// remove removes the cooling record of an address, unless a later release wrote it.
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
		c.log.Error("removing a cooling record failed", "address", done.addr, "err", err)
	}
}
