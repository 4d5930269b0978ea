package podnics

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/operator/podnics/nicplan"
	"github.com/berthnet/berth/internal/vpcport"
)

const (
	// gather is how long a call waits for others of its kind that one request can carry, and
	// gatherMore how long while several requests that were not full are in flight.
	gather     = 20 * time.Millisecond
	gatherMore = 200 * time.Millisecond
	// pollsYield is how long polls wait at most while calls are in flight by which pods get their
	// ports: a poll reports what is so already, and polls that wait become one request.
	pollsYield = 2 * time.Second
	// callTimeout bounds a request, including its wait for its turn at the provider.
	callTimeout = 2 * time.Minute
)

// callKind is a kind of calls that one request can carry together.
type callKind int

const (
	creates callKind = iota
	looks
	polls
	singles // of one port each: changes and deletions
	callKinds
)

// atOnce is how many requests of a kind are in flight at most, and partly how many of them before one
// that is not full waits for more calls: the more there is to do, the more goes into a request.
// A provider that takes more of them says so (vpcport.Traits.AtOnce), and limits by itself how
// many it takes of all kinds.
var (
	atOnce = [callKinds]int{creates: 8, looks: 8, polls: 8, singles: 32}
	partly = [callKinds]int{creates: 4, looks: 4, polls: 2, singles: 32}
)

func kindOf(k nicplan.Kind) callKind {
	switch k {
	case nicplan.Create:
		return creates
	case nicplan.Look:
		return looks
	case nicplan.Poll:
		return polls
	default:
		return singles
	}
}

// call is what one NIC asks of the provider.
type call struct {
	uid      types.UID
	step     nicplan.Step
	desired  nicplan.Desired
	observed nicplan.Observed
	at       time.Time // when it was submitted
}

// batcher puts the calls of each VPC together into requests to its provider, and makes them. Each call gets
// one reply.
type batcher struct {
	clock  clock.Clock
	reply  func(call, nicplan.Reply)
	flying sync.WaitGroup // requests in flight
	closed chan struct{}

	mu     sync.Mutex // guards all below, and all vpcBatchers
	ctx    context.Context
	cancel context.CancelFunc
	shut   bool
	byVPC  map[string]*vpcBatcher
}

// vpcBatcher has the calls of one VPC. batcher.mu guards it.
type vpcBatcher struct {
	all      *batcher
	provider vpcport.Provider
	waiting  [callKinds][]call
	wakes    [callKinds]time.Time // when begin is called once more; zero: not by itself
	running  [callKinds]int
	most     int // ports of one Create; 0: what the provider says
}

// newBatcher returns a batcher that passes replies to reply, and holds calls back until open.
func newBatcher(c clock.Clock, reply func(call, nicplan.Reply)) *batcher {
	return &batcher{clock: c, reply: reply, closed: make(chan struct{}), byVPC: map[string]*vpcBatcher{}}
}

// open has requests be made, with ctx.
func (b *batcher) open(ctx context.Context) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ctx, b.cancel = context.WithCancel(ctx)
	for _, each := range b.byVPC {
		for k := range callKinds {
			each.begin(k)
		}
	}
}

// close lets no further request begin, and waits for those in flight.
func (b *batcher) close() {
	b.mu.Lock()
	b.shut = true
	close(b.closed)
	b.mu.Unlock()
	b.flying.Wait()
	b.cancel()
}

// submit has a call made by the provider that the VPC has now.
func (b *batcher) submit(vpc string, provider vpcport.Provider, c call) {
	b.mu.Lock()
	defer b.mu.Unlock()
	of := b.byVPC[vpc]
	if of == nil {
		of = &vpcBatcher{all: b}
		b.byVPC[vpc] = of
	}
	if of.provider != provider {
		of.provider, of.most = provider, 0
	}
	k := kindOf(c.step.Kind)
	c.at = b.clock.Now()
	of.waiting[k] = append(of.waiting[k], c)
	of.begin(k)
}

// due is how long the next request of a kind waits for more calls; not ok: until another one ends. b.all.mu is
// held.
func (b *vpcBatcher) due(k callKind) (wait time.Duration, ok bool) {
	n := len(b.waiting[k])
	if b.all.ctx == nil || b.all.shut || n == 0 || b.running[k] >= max(atOnce[k], b.provider.Traits().AtOnce) {
		return 0, false
	}
	limit := gather
	switch {
	case k == polls && b.running[creates]+b.running[singles] >= atOnce[polls]:
		limit = pollsYield
	case n >= b.full(k):
		return 0, true
	case b.running[k] >= partly[k]:
		limit = gatherMore
	}
	return max(0, limit-b.all.clock.Now().Sub(b.waiting[k][0].at)), true
}

// begin starts as many requests of a kind as may be, and has the next ones start when they are due. batcher.mu
// is held.
func (b *vpcBatcher) begin(k callKind) {
	wait, ok := b.due(k)
	for ; ok && wait == 0; wait, ok = b.due(k) {
		b.start(k)
	}
	at := b.all.clock.Now().Add(wait)
	if !ok || !b.wakes[k].IsZero() && !at.Before(b.wakes[k]) {
		return
	}
	b.wakes[k] = at
	after := b.all.clock.After(wait)
	go func() {
		select {
		case <-b.all.closed:
			return
		case <-after:
		}
		b.all.mu.Lock()
		defer b.all.mu.Unlock()
		if b.wakes[k].Equal(at) {
			b.wakes[k] = time.Time{}
		}
		b.begin(k)
	}()
}

// start starts the next request of a kind. batcher.mu is held.
func (b *vpcBatcher) start(k callKind) {
	batch := b.take(k)
	provider, ctx, most := b.provider, b.all.ctx, b.most
	b.running[k]++
	b.all.flying.Add(1)
	go func() {
		defer b.all.flying.Done()
		bounded, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		c := caller{provider, b.all.clock, b.all.reply, most}
		c.do(bounded, k, batch)
		b.all.mu.Lock()
		defer b.all.mu.Unlock()
		if c.most != most {
			b.most = c.most
		}
		b.running[k]--
		b.begin(k)
		if k != polls {
			b.begin(polls) // which may have yielded to this
		}
	}()
}

// full is how many calls a request carries at most. batcher.mu is held.
func (b *vpcBatcher) full(k callKind) int {
	traits := b.provider.Traits()
	switch {
	case k == singles:
		return 1
	case k != creates:
		return max(1, traits.MaxFilter)
	case b.most > 0:
		return min(b.most, max(1, traits.MaxBatch))
	}
	return max(1, traits.MaxBatch)
}

// take removes the calls of the next request. batcher.mu is held.
func (b *vpcBatcher) take(k callKind) []call {
	waiting, n := b.waiting[k], b.full(k)
	if k == creates {
		return b.takeAlike(n)
	}
	n = min(n, len(waiting))
	batch := slices.Clone(waiting[:n])
	clear(waiting[:n]) // what they point to is not kept
	b.waiting[k] = waiting[n:]
	return batch
}

// takeAlike removes the calls for new ports that one request asks for, up to most of them. batcher.mu is held.
func (b *vpcBatcher) takeAlike(most int) []call {
	waiting := b.waiting[creates]
	picked := nicplan.Batch(func(yield func(vpcport.NewPort) bool) {
		for _, c := range waiting {
			if !yield(c.desired.Port) {
				return
			}
		}
	}, most)
	batch := make([]call, len(picked))
	for at, i := range picked {
		batch[at] = waiting[i]
	}
	// Those that stay move up to the last one that goes.
	last := len(picked) - 1
	to := picked[last] + 1
	for i := picked[last]; i >= 0; i-- {
		if last >= 0 && picked[last] == i {
			last--
			continue
		}
		to--
		waiting[to] = waiting[i]
	}
	clear(waiting[:to])
	b.waiting[creates] = waiting[to:]
	return batch
}
