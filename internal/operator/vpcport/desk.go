package vpcport

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/operator/vpcport/plan"
	"github.com/berthnet/berth/internal/vpcport"
)

const (
	// gather is how long a call waits for others that it can be made together with.
	gather = 20 * time.Millisecond
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

// atOnce is how many calls of a tray are under way at most. How many the provider bears
// is the matter of whoever opened it; more than these would only make batches small.
var atOnce = [trays]int{creates: 8, looks: 4, polls: 2, singles: 32}

// trayOf is where a step's call is made.
func trayOf(k plan.Kind) tray {
	switch k {
	case plan.Create:
		return creates
	case plan.Look:
		return looks
	case plan.Poll:
		return polls
	default:
		return singles
	}
}

// job is one NIC's call.
type job struct {
	uid  types.UID
	step plan.Step
	want plan.Want
	have plan.Have
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
	clock clock.Clock
	tell  func(job, answer)
	under sync.WaitGroup // calls under way

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
	gathers  [trays]bool
	running  [trays]int
	most     int // ports of one Create; 0: what the provider says
}

func newDesks(c clock.Clock, tell func(job, answer)) *desks {
	return &desks{clock: c, tell: tell, byVPC: map[string]*desk{}}
}

// open has calls be made, with ctx.
func (d *desks) open(ctx context.Context) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ctx, d.cancel = context.WithCancel(ctx)
	for _, each := range d.byVPC {
		for t := range trays {
			each.gather(t)
		}
	}
}

// close has no call begin any more, and waits for those under way.
func (d *desks) close() {
	d.mu.Lock()
	d.shut = true
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
	of.waiting[t] = append(of.waiting[t], j)
	of.gather(t)
}

// gather begins calls soon. d.mu is held.
func (d *desk) gather(t tray) {
	if d.ctx == nil || d.shut || d.gathers[t] || len(d.waiting[t]) == 0 || d.running[t] >= atOnce[t] {
		return
	}
	d.gathers[t] = true
	wait := d.clock.After(gather)
	d.under.Add(1)
	go func() {
		defer d.under.Done()
		<-wait
		d.mu.Lock()
		defer d.mu.Unlock()
		d.gathers[t] = false
		d.begin(t)
	}()
}

// begin begins as many calls as may be. d.mu is held.
func (d *desk) begin(t tray) {
	for !d.shut && d.running[t] < atOnce[t] && len(d.waiting[t]) > 0 {
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
		}()
	}
}

// take removes the jobs of the next call from a tray. d.mu is held.
func (d *desk) take(t tray) []job {
	waiting, traits := d.waiting[t], d.provider.Traits()
	var picked []int
	switch t {
	case creates:
		most := max(1, traits.MaxBatch)
		if d.most > 0 {
			most = min(most, d.most)
		}
		ports := make([]vpcport.NewPort, len(waiting))
		for i, j := range waiting {
			ports[i] = j.want.New()
		}
		picked = plan.Batches(ports, most)[0]
	case looks, polls:
		for i := range min(len(waiting), max(1, traits.MaxFilter)) {
			picked = append(picked, i)
		}
	default:
		picked = []int{0}
	}
	taken := make(map[int]bool, len(picked))
	batch := make([]job, 0, len(picked))
	for _, i := range picked {
		taken[i] = true
		batch = append(batch, waiting[i])
	}
	rest := make([]job, 0, len(waiting)-len(picked))
	for i, j := range waiting {
		if !taken[i] {
			rest = append(rest, j)
		}
	}
	d.waiting[t] = rest
	return batch
}
