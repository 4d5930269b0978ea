package fleet

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
)

const (
	burstWindow = 5 * time.Millisecond   // kicks of a node within it cause one pass
	passTime    = 100 * time.Microsecond // about the processor time of a pass
	// listRetry is the delay after a failed full listing.
	listRetry = 5 * time.Second
)

// Run works until ctx ends, and returns once no call is in flight.
func (f *Fleet) Run(ctx context.Context) error {
	f.mu.Lock()
	if f.ctx != nil {
		f.mu.Unlock()
		return errRunning
	}
	f.ctx = ctx
	close(f.running)
	f.mu.Unlock()
	f.work.Go(func() {
		clock.Turn(f.cfg.Clock, "repair", 0)
		f.repair(ctx)
	})
	f.work.Go(func() {
		clock.Turn(f.cfg.Clock, "collect", 0)
		f.collect(ctx)
	})
	f.schedule(ctx)
	f.work.Wait()
	return ctx.Err()
}

// schedule starts the passes of nodes as they become due. Only a node with work to do now has a goroutine.
func (f *Fleet) schedule(ctx context.Context) {
	for ctx.Err() == nil {
		wait := f.begin(ctx)
		select {
		case <-ctx.Done():
		case <-f.due.wake:
		case <-f.cfg.Clock.After(wait):
		}
	}
}

// begin starts the passes that are due, and returns the time until the next one is due.
func (f *Fleet) begin(ctx context.Context) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.cfg.Clock.Now()
	for {
		m, wait := f.due.next(now)
		if m == nil {
			return wait
		}
		if m.after != nil && m.after.running {
			m.again = true // its end makes this one due
			continue
		}
		m.running, m.after, m.again = true, nil, false
		if f.workers.hand(m) {
			continue
		}
		f.work.Go(func() {
			for m := m; m != nil; m = f.workers.next(ctx) {
				clock.Turn(f.cfg.Clock, m.name, 0)
				f.run(ctx, m)
			}
		})
	}
}

// postpone ends the turn of a node that no pod needs and that has not been observed, until the first full listing has ended.
// In a large cluster, that listing takes minutes, and tens of thousands of nodes would wait for it, each with a goroutine. News of
// the node, such as a pod that waits, end the delay.
func (f *Fleet) postpone(m *member) bool {
	f.mu.Lock()
	observed := m.places.sure
	f.mu.Unlock()
	if observed || !f.observatory.awaitsFirst() || !m.rec.Supplied() {
		return false
	}
	f.observatory.instances.expect(m.instance)
	f.mu.Lock()
	defer f.mu.Unlock()
	m.running = false
	switch {
	case m.removed:
		f.finish(m)
	case m.again:
		m.again = false
		f.due.enqueue(m, m.againAt)
	}
	return true
}

// resume makes the nodes due that were postponed. Their passes are spread, since each uses the processor for a moment.
func (f *Fleet) resume() {
	f.mu.Lock()
	defer f.mu.Unlock()
	within := min(f.cfg.ListingInterval/4, time.Duration(len(f.members))*passTime)
	now := f.cfg.Clock.Now()
	for _, name := range slices.Sorted(maps.Keys(f.members)) {
		if m := f.members[name]; !m.places.sure {
			f.due.sooner(m, now.Add(time.Duration(f.cfg.Random(int64(within)))))
		}
	}
}

// run makes passes for one node until nothing is left to do now.
func (f *Fleet) run(ctx context.Context, m *member) {
	if f.postpone(m) {
		return
	}
	f.mu.Lock()
	s := m.settings
	if s != nil {
		m.node.Node = m.next
	}
	m.settings, m.next = nil, nil
	f.mu.Unlock()
	wait := f.pass(ctx, m, s)
	if ctx.Err() == nil && !m.rec.Ended() {
		m.node.Reconciled(m.rec.Status())
	}
	vpcs := m.rec.VPCs()
	f.mu.Lock()
	defer f.mu.Unlock()
	m.running = false
	if m.removed {
		f.finish(m)
		return
	}
	if len(vpcs) > 0 {
		m.places = places{vpcs, true}
	}
	now := f.cfg.Clock.Now()
	at := now.Add(wait)
	if m.again && m.againAt.Before(at) {
		at = m.againAt
	}
	m.again = false
	f.due.enqueue(m, at)
}

// remove removes a node. f.mu is held.
func (f *Fleet) remove(name string) {
	m := f.members[name]
	if m == nil {
		return
	}
	delete(f.members, name)
	if f.serving[m.instance]--; f.serving[m.instance] == 0 {
		delete(f.serving, m.instance)
	}
	m.removed = true
	m.rec.End()
	f.due.drop(m)
	if m.running {
		f.leaving[m.instance] = m
		return
	}
	f.finish(m)
}

// finish ends the work for a removed node. f.mu is held.
func (f *Fleet) finish(m *member) {
	m.rec.Close()
	f.ended[m.instance] = f.cfg.Clock.Now()
	if f.serving[m.instance] == 0 {
		f.holders.drop(m.instance)
	}
	if f.leaving[m.instance] != m {
		return
	}
	delete(f.leaving, m.instance)
	if next := m.successor; next != nil && next.after == m && !next.removed {
		next.after = nil
		f.due.sooner(next, f.cfg.Clock.Now())
	}
}

// repair makes full listings regularly, and makes every node process its part within a quarter of the interval.
func (f *Fleet) repair(ctx context.Context) {
	for ctx.Err() == nil {
		wait := f.cfg.jitter(f.cfg.ListingInterval)
		if f.empty() {
			wait = time.Second
		} else if young := f.cfg.Clock.Now().Sub(f.observatory.lastAt()); young < f.cfg.ListingInterval/2 {
			wait -= young // the first node that joined caused a listing
		} else if err := f.observatory.list(ctx); err != nil {
			f.cfg.Logger.Warn("full listing failed", "class", cloud.ClassOf(err).String(), "err", err)
			wait = f.cfg.jitter(listRetry)
		} else {
			f.spread(f.cfg.ListingInterval / 4)
		}
		select {
		case <-ctx.Done():
		case <-f.cfg.Clock.After(wait):
		}
	}
}

func (f *Fleet) empty() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.members) == 0
}

// kickAll schedules a pass of every node now.
func (f *Fleet) kickAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.cfg.Clock.Now()
	for _, m := range f.members {
		f.due.sooner(m, now)
	}
}

// spread schedules a pass of every node within a time.
func (f *Fleet) spread(within time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.cfg.Clock.Now()
	for _, name := range slices.Sorted(maps.Keys(f.members)) {
		if m := f.members[name]; !m.running {
			f.due.sooner(m, now.Add(time.Duration(f.cfg.Random(int64(within)))))
		}
	}
	old := now.Add(-2 * f.cfg.ListingInterval)
	maps.DeleteFunc(f.ended, func(_ string, at time.Time) bool { return at.Before(old) })
}

// collect deletes orphans regularly. It starts late, because growth comes first after a start, which may follow a
// crash of many nodes.
func (f *Fleet) collect(ctx context.Context) {
	seen := eni.Sightings{}
	wait := min(time.Minute, f.cfg.CollectInterval/2) + time.Duration(f.cfg.Random(int64(f.cfg.CollectInterval)))
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.cfg.Clock.After(wait):
		}
		alive := f.known()
		c := eni.Collector{
			Cloud: f.cfg.Cloud, Cluster: f.cfg.Cluster, MinAge: f.cfg.OrphanAge, Seen: seen,
			Alive: func(id string) bool { _, ok := alive[id]; return ok },
		}
		call, cancel := context.WithTimeout(ctx, listTimeout)
		now := f.cfg.Clock.Now()
		found, err := c.Collect(call, now)
		cancel()
		if f.cfg.Observer != nil {
			f.cfg.Observer.Collected(found)
		}
		wait = f.cfg.jitter(f.cfg.CollectInterval)
		if due := seen.Due(now, f.cfg.OrphanAge); !due.IsZero() {
			wait = min(wait, due.Sub(f.cfg.Clock.Now()))
		}
		if err != nil {
			f.cfg.Logger.Warn("looking for orphans failed", "class", cloud.ClassOf(err).String(), "err", err)
			wait = min(wait, f.cfg.jitter(time.Minute))
		}
		if found.Deleted > 0 {
			f.cfg.Logger.Info("deleted ENIs of vanished instances", "count", found.Deleted)
		}
	}
}
