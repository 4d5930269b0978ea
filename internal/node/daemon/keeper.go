package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon/part"
	"github.com/berthnet/berth/internal/retry"
)

// againAfter is the delay before attachments are checked again because a call about their container was
// in progress, and the first delay after a failed repair.
const againAfter = 2 * time.Second

// keeper keeps one part of all ready attachments in the desired state: it repairs state that other software
// changed, and applies changes. A start leaves ready records to it, so that an unavailable service does not
// delay startup.
type keeper struct {
	part        part.Part
	about       part.About
	attachments *attachments
	conditions  *conditions
	interval    time.Duration
	clock       clock.Clock
	log         *slog.Logger
	changes     *changes
	// followers are the keepers of parts that must be checked after this one has set up or changed interfaces.
	followers keepers
	touched   retry.Signal // set when keys has grown

	mu   sync.Mutex              // guards keys
	keys map[attachment.Key]bool // attachments to check soon

	// The fields below belong to the goroutine of run.
	swept  bool // no state without a record is left on the node
	serves bool // ADDs may be in progress
	fails  int  // consecutive rounds with failures
}

// keepers are the keepers of all parts that need checks.
type keepers []*keeper

// newKeepers creates a keeper for each part, and sets the followers of interfaces in attachments.
func newKeepers(draining context.Context, o Options, a *attachments, c *conditions) (all keepers) {
	for i, p := range o.Parts {
		about := p.About()
		if about.ChecksAtOnce == 0 {
			continue
		}
		k := &keeper{
			part: p, about: about, attachments: a, conditions: c, interval: o.RepairInterval, clock: o.Clock, log: o.Log,
			touched: retry.NewSignal(), keys: map[attachment.Key]bool{},
		}
		host := &host{attachments: a, wait: max(o.WarmWait, about.Wait), later: o.Parts[i+1:]}
		k.changes = newChanges(draining, o.Store, o.Clock, changing{
			desired: p.Desired,
			change:  func(ctx context.Context, key attachment.Key) error { return p.Change(ctx, host, key) },
			done:    k.changed,
		})
		all = append(all, k)
		if about.FollowsInterfaces {
			a.followers = append(a.followers, k)
		}
	}
	for _, k := range all {
		k.followers = slices.DeleteFunc(slices.Clone(a.followers), func(f *keeper) bool { return f == k })
	}
	return all
}

// touch requests a check of an attachment.
func (ks keepers) touch(rec attachment.Record) {
	for _, k := range ks {
		if checks, _ := k.part.Checks(rec); checks {
			k.mu.Lock()
			k.keys[rec.Key] = true
			k.mu.Unlock()
			k.touched.Set()
		}
	}
}

// takeUp removes state without a record, and reports the ready attachments to parts. It is the last step of
// recovery.
func (ks keepers) takeUp(ctx context.Context) {
	var ready []attachment.Record
	for _, k := range ks {
		k.sweep(ctx)
		if ready == nil {
			ready = k.attachments.readyRecords()
		}
		k.part.TakeUp(ready)
	}
}

// run checks all attachments immediately, at an interval and when something changed, and applies
// changes, until ctx ends.
func (k *keeper) run(ctx context.Context) {
	defer k.changes.wait()
	k.serves = true
	due := k.checkAll(ctx)
	for {
		var again <-chan time.Time
		if next := k.changes.begin(ctx); !next.IsZero() {
			again = k.clock.After(next.Sub(k.clock.Now()))
		}
		select {
		case <-ctx.Done():
			return
		case <-k.clock.After(due.Sub(k.clock.Now())):
			due = k.checkAll(ctx)
		case <-k.part.Drift():
			if !sleep(ctx, k.clock.After(repairDebounce)) {
				return
			}
			if keys, all := k.part.Drifted(); all {
				due = k.checkAll(ctx)
			} else {
				due = retry.Earliest(time.Time{}, due, k.checkSome(ctx, keys)) // touching attachments never delays the check of all
			}
		case <-k.touched:
			due = retry.Earliest(time.Time{}, due, k.checkSome(ctx, k.takeKeys()))
		case <-k.part.DesiredChanged():
		case <-k.changes.ended:
		case <-again:
		}
	}
}

// sleep waits for d. It returns false if ctx ends first.
func sleep(ctx context.Context, moment <-chan time.Time) bool {
	select {
	case <-ctx.Done():
		return false
	case <-moment:
		return true
	}
}

func (k *keeper) takeKeys() []attachment.Key {
	k.mu.Lock()
	defer k.mu.Unlock()
	keys := slices.Collect(maps.Keys(k.keys))
	clear(k.keys)
	return keys
}

// checkAll checks all attachments, and returns the time of the next check. The delay grows while repairs
// fail, because a failure may be permanent.
func (k *keeper) checkAll(ctx context.Context) time.Time {
	k.inspect(ctx)
	if !k.swept {
		k.sweep(ctx)
	}
	wait := k.interval
	all, failed := k.check(ctx, k.attachments.store.Records())
	if !all {
		wait = min(wait, againAfter)
	}
	if failed {
		wait = min(wait, retry.Delay(againAfter, wait, k.fails))
		k.fails++
	} else {
		k.fails = 0
	}
	return k.clock.Now().Add(wait)
}

// checkSome checks some attachments, and returns the time of the check of all that it requires, or zero.
func (k *keeper) checkSome(ctx context.Context, keys []attachment.Key) time.Time {
	var records []attachment.Record
	for _, key := range keys {
		if rec, ok := k.attachments.store.Get(key); ok {
			records = append(records, rec)
		}
	}
	switch all, failed := k.check(ctx, records); {
	case !all:
		return k.clock.Now().Add(againAfter)
	case failed:
		return k.clock.Now().Add(retry.Delay(againAfter, k.interval, k.fails))
	}
	return time.Time{}
}

// check repairs changes that other software made to some attachments. all is false if any was skipped because
// of a call about its container; attachments of a service that does not respond are skipped until the service
// returns. failed reports that a repair failed.
func (k *keeper) check(ctx context.Context, records []attachment.Record) (all, failed bool) {
	var wg sync.WaitGroup
	turns := make(chan struct{}, k.about.ChecksAtOnce)
	var mu sync.Mutex // guards the variables below
	all = true
	away := map[string]bool{}
	for _, rec := range records {
		checks, service := k.part.Checks(rec)
		if rec.State != attachment.Ready || !checks {
			continue
		}
		turns <- struct{}{}
		mu.Lock()
		skip := ctx.Err() != nil || service != "" && away[service]
		mu.Unlock()
		if skip {
			<-turns
			continue
		}
		wg.Go(func() {
			defer func() { <-turns }()
			r := k.checkOne(ctx, rec.Key)
			if r.again {
				k.followers.touch(rec) // followers need the container's lock, which is released here
			}
			mu.Lock()
			defer mu.Unlock()
			all, failed, away[service] = all && !r.busy, failed || r.failed, away[service] || r.unreachable
		})
	}
	wg.Wait()
	return all, failed
}

// checked is the result of one check.
type checked struct{ busy, unreachable, failed, again bool }

// checkOne repairs one attachment if it is not as recorded. It skips an attachment with a call in progress
// about its container, which may be an ADD that waits for long.
func (k *keeper) checkOne(ctx context.Context, key attachment.Key) checked {
	unlock, ok := k.attachments.locks.try(key.ContainerID)
	if !ok {
		return checked{busy: true}
	}
	defer unlock()
	rec, ok := k.attachments.store.Get(key)
	if !ok || rec.State != attachment.Ready {
		return checked{}
	}
	look, over := context.WithTimeout(ctx, kernelTimeout)
	defer over()
	differs := k.part.Check(look, rec)
	switch {
	case differs == nil, ctx.Err() != nil:
		return checked{}
	case part.IsUnreachable(differs):
		return checked{unreachable: true}
	}
	if alive, err := part.Alive(k.attachments.inspect, rec.Netns); !alive && err == nil {
		return checked{} // left to the sweep
	}
	now, err := k.attachments.again(ctx, rec, k.part.SetUp)
	k.count(part.Again, err)
	if err != nil {
		k.log.Warn("setting up the "+k.about.Name+" of a pod again failed, will try again", rec.ForLog("was", differs, "err", err)...) //nolint:sloglint // a part has one name
		return checked{failed: true}
	}
	k.part.Ready(now)
	k.log.Warn("set up the "+k.about.Name+" of a pod again", rec.ForLog("was", differs)...) //nolint:sloglint // a part has one name
	return checked{again: true}
}

// changed counts and logs the end of a change; news means that its error differs from the previous one.
func (k *keeper) changed(rec attachment.Record, err error, news bool) {
	k.followers.touch(rec)
	k.count(part.Changed, err)
	if news {
		k.log.Warn("changing the "+k.about.Name+" of a running pod failed, will try again", rec.ForLog("err", err)...) //nolint:sloglint // a part has one name
	}
}

func (k *keeper) count(done string, err error) {
	if k.about.Count != nil {
		k.about.Count(done, err)
	}
}

// inspect updates the part's conditions.
func (k *keeper) inspect(ctx context.Context) {
	look, over := context.WithTimeout(ctx, kernelTimeout)
	defer over()
	for _, c := range k.part.Inspect(look) {
		if ctx.Err() == nil {
			k.conditions.set(c.Type, c.Healthy, c.Reason, c.Message)
		}
	}
}

// sweep removes state of the part that has no record.
func (k *keeper) sweep(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, kernelTimeout)
	defer cancel()
	damaged := k.attachments.quarantine.links()
	err := k.part.Sweep(ctx, func(hostLink, port string) bool {
		if port == "" && hostLink == "" {
			return k.serves
		}
		return k.attachments.store.Has(hostLink, port) || slices.Contains(damaged, hostLink)
	})
	if k.swept = err == nil; err != nil && ctx.Err() == nil {
		k.log.Warn("removing "+k.about.Name+" without a record failed, will try again", "err", err) //nolint:sloglint // a part has one name
	}
}

// host implements part.Host for one part.
type host struct {
	attachments *attachments
	wait        time.Duration // how long an ADD waits for the part
	later       parts         // those after the part
}

// Hold implements part.Host.
func (h *host) Hold(ctx context.Context, key attachment.Key) (rec attachment.Record, release func(), err error) {
	unlock, err := h.attachments.locks.lock(ctx, key.ContainerID)
	if err != nil {
		return rec, nil, err
	}
	rec, ok := h.attachments.store.Get(key)
	if ok && rec.State == attachment.Ready && !h.hasNewer(rec) {
		if alive, err := part.Alive(h.attachments.inspect, rec.Netns); alive || err != nil {
			return rec, unlock, nil //nolint:nilerr // what cannot be looked at counts as alive
		}
	}
	unlock()
	return rec, nil, nil
}

// hasNewer reports whether the pod has a later sandbox, which gets the part instead of this one.
func (h *host) hasNewer(rec attachment.Record) bool {
	return slices.ContainsFunc(h.attachments.store.Records(), func(o attachment.Record) bool {
		return o.Key.ContainerID != rec.Key.ContainerID && o.Pod.UID != "" && o.Pod.UID == rec.Pod.UID && o.Key.IfName == rec.Key.IfName && o.Since.After(rec.Since)
	})
}

// Put implements part.Host.
func (h *host) Put(rec attachment.Record) error { return h.attachments.put(rec) }

// SetUpLease implements part.Host.
func (h *host) SetUpLease(ctx context.Context, rec attachment.Record) error {
	_, err := h.attachments.wiring.wireLease(ctx, rec)
	return err
}

// PrepareLater implements part.Host.
func (h *host) PrepareLater(ctx context.Context, rec attachment.Record) error {
	for _, p := range slices.Backward(h.later) {
		if err := p.Prepare(ctx, rec); err != nil {
			return fmt.Errorf("%s%w", p.About().NotPrepared, err)
		}
	}
	return nil
}

// SetUpLater implements part.Host.
func (h *host) SetUpLater(ctx context.Context, rec attachment.Record) error {
	_, err := h.later.setUp(ctx, rec)
	return err
}

// Waiting implements part.Host.
func (h *host) Waiting(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, h.wait)
	stop := context.AfterFunc(h.attachments.acquirer.draining, cancel)
	return ctx, func() { stop(); cancel() }
}

// Setting implements part.Host.
func (h *host) Setting(ctx context.Context) (context.Context, context.CancelFunc) {
	return kernelContext(ctx)
}
