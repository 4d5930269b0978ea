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
	// gather is how long a call waits for others that it can be made together with, and
	// gatherMore how long while several that were not full are under way.
	gather     = 20 * time.Millisecond
	gatherMore = 200 * time.Millisecond
	// yields is how long a poll waits at most for calls by which pods get their ports:
	// it tells what is so already, and polls that wait become one.
	yields = 2 * time.Second
	// callTimeout bounds a call, with its wait for its turn.
	callTimeout = 2 * time.Minute
)

// tray is a kind of calls that can be made together.
type tray int

const (
	creates tray = iota
	looks
	polls
	singles // of one port each: changes and deletions
	trays
)

// atOnce is how many calls of a tray are under way at most, and partly how many of them
// before one that is not full waits for more: so the more there is to do, the more goes into
// a call. How many the provider bears is the matter of whoever opened it. One that bears more
// says so (vpcport.Traits.AtOnce).
var (
	atOnce = [trays]int{creates: 8, looks: 8, polls: 8, singles: 32}
	partly = [trays]int{creates: 4, looks: 4, polls: 2, singles: 32}
)

// trayOf is where a step's call is made.
func trayOf(k nicplan.Kind) tray {
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

// job is one NIC's call.
type job struct {
	uid  types.UID
	step nicplan.Step
	want nicplan.Want
	have nicplan.Have
	at   time.Time // when it was submitted
}

// answer is what came of a job.
type answer struct {
	port  *vpcport.Port  // of Create, Change and Poll
	ports []vpcport.Port // of Look: all that may be the NIC's, or have its MAC address
	began time.Time      // when the call that looked did
	err   error
}

// desks are one for each VPC.
type desks struct {
	clock  clock.Clock
	tell   func(job, answer)
	under  sync.WaitGroup // calls under way
	closed chan struct{}

	mu     sync.Mutex // guards all below
	ctx    context.Context
	cancel context.CancelFunc
	shut   bool
	byVPC  map[string]*desk
}

// desk is where the calls of one VPC are put together.
type desk struct {
	*desks
	provider vpcport.Provider // guarded by desks.mu, as all below
	waiting  [trays][]job
	wakes    [trays]time.Time // when begin is called once more; zero: not by itself
	running  [trays]int
	most     int // ports of one Create; 0: what the provider says
}

func newDesks(c clock.Clock, tell func(job, answer)) *desks {
	return &desks{clock: c, tell: tell, closed: make(chan struct{}), byVPC: map[string]*desk{}}
}

// open has calls be made, with ctx.
func (d *desks) open(ctx context.Context) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ctx, d.cancel = context.WithCancel(ctx)
	for _, each := range d.byVPC {
		for t := range trays {
			each.begin(t)
		}
	}
}

// close has no call begin any more, and waits for those under way.
func (d *desks) close() {
	d.mu.Lock()
	d.shut = true
	close(d.closed)
	d.mu.Unlock()
	d.under.Wait()
	d.cancel()
}

// submit has a job done, by the provider that the VPC has now.
func (d *desks) submit(vpc string, provider vpcport.Provider, j job) {
	d.mu.Lock()
	defer d.mu.Unlock()
	of := d.byVPC[vpc]
	if of == nil {
		of = &desk{desks: d}
		d.byVPC[vpc] = of
	}
	if of.provider != provider {
		of.provider, of.most = provider, 0
	}
	t := trayOf(j.step.Kind)
	j.at = d.clock.Now()
	of.waiting[t] = append(of.waiting[t], j)
	of.begin(t)
}

// due is how long the next call of a tray waits for others; no: until another one ends.
// d.mu is held.
func (d *desk) due(t tray) (wait time.Duration, ok bool) {
	n := len(d.waiting[t])
	if d.ctx == nil || d.shut || n == 0 || d.running[t] >= max(atOnce[t], d.provider.Traits().AtOnce) {
		return 0, false
	}
	limit := gather
	switch {
	case t == polls && d.running[creates]+d.running[singles] >= atOnce[polls]:
		limit = yields
	case n >= d.full(t):
		return 0, true
	case d.running[t] >= partly[t]:
		limit = gatherMore
	}
	return max(0, limit-d.clock.Now().Sub(d.waiting[t][0].at)), true
}

// begin begins as many calls as may be, and has the next ones begin when it is time. d.mu is
// held.
func (d *desk) begin(t tray) {
	wait, ok := d.due(t)
	for ; ok && wait == 0; wait, ok = d.due(t) {
		d.start(t)
	}
	at := d.clock.Now().Add(wait)
	if !ok || !d.wakes[t].IsZero() && !at.Before(d.wakes[t]) {
		return
	}
	d.wakes[t] = at
	after := d.clock.After(wait)
	go func() {
		select {
		case <-d.closed:
			return
		case <-after:
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.wakes[t].Equal(at) {
			d.wakes[t] = time.Time{}
		}
		d.begin(t)
	}()
}

// start starts the next call of a tray. d.mu is held.
func (d *desk) start(t tray) {
	batch := d.take(t)
	provider, ctx, most := d.provider, d.ctx, d.most
	d.running[t]++
	d.under.Add(1)
	go func() {
		defer d.under.Done()
		bounded, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		c := caller{provider, d.clock, d.tell, most}
		c.do(bounded, t, batch)
		d.mu.Lock()
		defer d.mu.Unlock()
		if c.most != most {
			d.most = c.most
		}
		d.running[t]--
		d.begin(t)
		if t != polls {
			d.begin(polls) // which may have waited for this
		}
	}()
}

// full is how many jobs fill a call. d.mu is held.
func (d *desk) full(t tray) int {
	traits := d.provider.Traits()
	switch {
	case t == singles:
		return 1
	case t != creates:
		return max(1, traits.MaxFilter)
	case d.most > 0:
		return min(d.most, max(1, traits.MaxBatch))
	}
	return max(1, traits.MaxBatch)
}

// take removes the jobs of the next call from a tray. d.mu is held.
func (d *desk) take(t tray) []job {
	waiting, n := d.waiting[t], d.full(t)
	if t == creates {
		return d.takeAlike(n)
	}
	n = min(n, len(waiting))
	batch := slices.Clone(waiting[:n])
	clear(waiting[:n]) // what they point to is not kept
	d.waiting[t] = waiting[n:]
	return batch
}

// takeAlike removes those new ports that one call asks for, most at a time. d.mu is held.
func (d *desk) takeAlike(most int) []job {
	waiting := d.waiting[creates]
	picked := nicplan.Batch(func(yield func(vpcport.NewPort) bool) {
		for _, j := range waiting {
			if !yield(j.want.New()) {
				return
			}
		}
	}, most)
	batch := make([]job, len(picked))
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
	d.waiting[creates] = waiting[to:]
	return batch
}
