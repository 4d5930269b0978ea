package warm

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/vpcport"
)

// VPC is what the pool needs to know of one that is open.
type VPC struct {
	UID      string // of its object
	Network  string // the ID
	Provider vpcport.Provider
	Families int  // of how many of IP each port has an address; 0: one
	Ports    int  // of each kind, on each node; 0: none
	Ending   bool // it is being deleted
}

// Options are what a Pool needs to know. Zero durations take the defaults named.
type Options struct {
	Cluster string
	// VPC is a VPC object as it is now; false: nothing is done for it. From memory alone.
	VPC func(name string) (VPC, bool)
	// Most is how many ports a Node may have of all VPCs. From memory alone.
	Most func(ctx context.Context, node string) int
	// Exists tells whether there is a VPC object with a UID, open or not. From memory alone.
	Exists func(uid string) bool
	// Recorded are the IDs of the ports of all PodNICs, as the API server itself has them, and of those
	// that this process has taken for one.
	Recorded func(ctx context.Context) (map[string]bool, error)

	Clock   clock.Clock
	Logger  *slog.Logger
	Metrics *Metrics

	// Freed is told of a VPC one of whose ports is gone. It is quick; nil: nobody is told.
	Freed func(vpc string)

	// Settle is how long what an operator before this one did may take to show; 1 min.
	Settle time.Duration
	// Idle is for how long there are ports of a kind after a NIC last had one; 10 min.
	Idle time.Duration
	// Keep is for how long a port is kept that is more than is wanted, while there is room; 1 min.
	Keep time.Duration
}

// Pool are the ports of all VPCs that no NIC has.
type Pool struct {
	o    Options
	wake retry.Signal

	mu      sync.Mutex // guards all below; nothing is called under it but Logger and Metrics
	nics    map[types.UID]noted
	onHost  map[string]int    // how many of them each host has
	nodes   map[string]string // the names of Nodes, by host
	demands map[Kind]*demand
	ports   map[string]*stocked  // by ID
	begun   map[string]bool      // devices of ports that are being made
	taken   map[string]time.Time // when ports were taken, by ID, until listings show them as a NIC's
	found   map[string]time.Time // when a VPC was listed first, by its object's UID
	again   map[string]time.Time // when that is tried again, likewise
	short   map[string]time.Time // when a NIC of a VPC last lacked what the pool's ports have, by its name
}

// stocked is a port that no NIC has.
type stocked struct {
	vpc, uid string // the VPC object
	port     vpcport.Port
	kind     Kind      // zero: none that is in demand
	since    time.Time // when it was known
	found    bool      // an operator before this one made it, and may have deleted it since
	doomed   bool      // its deletion was begun, or nobody may have it: it is given to no NIC
	spare    time.Time // since when it is more than is wanted; zero: it is not
	going    bool      // it is being deleted
	until    time.Time // before when that is not tried again
	tries    int
}

// New makes a pool. It works while Run does.
func New(o Options) *Pool {
	o.Clock = cmp.Or[clock.Clock](o.Clock, clock.Real{})
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o.Metrics = cmp.Or(o.Metrics, NewMetrics())
	if o.Freed == nil {
		o.Freed = func(string) {}
	}
	o.Settle = cmp.Or(o.Settle, time.Minute)
	o.Idle, o.Keep = cmp.Or(o.Idle, 10*time.Minute), cmp.Or(o.Keep, time.Minute)
	return &Pool{
		o: o, wake: retry.NewSignal(), nics: map[types.UID]noted{}, onHost: map[string]int{}, nodes: map[string]string{}, demands: map[Kind]*demand{},
		ports: map[string]*stocked{}, begun: map[string]bool{}, taken: map[string]time.Time{}, found: map[string]time.Time{}, again: map[string]time.Time{}, short: map[string]time.Time{},
	}
}

// Take is a port for a NIC that has none, which asks for one in a VPC; false: there is none like that.
// It is the NIC's for good: whoever does not record it has it deleted.
func (p *Pool) Take(uid types.UID, vpc string, n vpcport.NewPort) (out vpcport.Port, ok bool) {
	k, ok := KindOf(vpc, n)
	v, open := p.o.VPC(vpc)
	if !ok || !open || v.keepsNone() {
		return vpcport.Port{}, false
	}
	now := p.o.Clock.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	var best *stocked
	for _, o := range p.ports {
		if o.kind == k && o.uid == v.UID && v.serves(o.port) && (best == nil || o.since.Before(best.since)) {
			best = o
		}
	}
	if asks := p.nics[uid]; best != nil || !asks.cold { // one that asks again counts once
		p.o.Metrics.took(vpc, best != nil)
	}
	if best == nil {
		if asks, known := p.nics[uid]; known {
			asks.cold = true
			p.nics[uid] = asks
		}
		return vpcport.Port{}, false
	}
	delete(p.ports, best.port.ID)
	p.taken[best.port.ID] = now
	p.wake.Set()
	return best.port, true
}

// Yield gives up the ports of a VPC for a while: its provider refused a NIC's port for what they have
// too, an address or a place in the quota. They can be taken until they are gone.
func (p *Pool) Yield(vpc string) {
	now := p.o.Clock.Now()
	p.edit(func() { p.short[vpc] = now })
	p.wake.Set()
}

// yields tells whether a VPC's ports are given up.
func (p *Pool) yields(vpc string) (yes bool) {
	now := p.o.Clock.Now()
	p.edit(func() {
		at, short := p.short[vpc]
		if yes = short && now.Sub(at) < p.o.Idle; !yes {
			delete(p.short, vpc)
		}
	})
	return yes
}

// Changed has it looked at what is to be done: a VPC or a Node is another.
func (p *Pool) Changed() { p.wake.Set() }

// Run keeps the pool until ctx ends, and waits for the calls that are under way then.
func (p *Pool) Run(ctx context.Context) error {
	w := &worker{Pool: p, surveying: map[string]bool{}}
	defer w.calls.Wait()
	for ctx.Err() == nil {
		w.round(ctx)
		for _, wait := range []time.Duration{atMost, atLeast - atMost} {
			wake := p.wake
			if wait == atMost {
				wake = nil
			}
			select {
			case <-ctx.Done():
				return nil
			case <-wake:
			case <-p.o.Clock.After(wait):
			}
		}
	}
	return nil
}

// It is looked at what is to be done at least and at most so often.
const (
	atLeast = 10 * time.Second
	atMost  = 200 * time.Millisecond
)

// Ready is how many ports can be taken, of each VPC of which there is something.
func (p *Pool) Ready() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[string]int{}
	for k := range p.demands {
		out[k.VPC] += 0
	}
	for _, o := range p.ports {
		if out[o.vpc] += 0; o.kind != (Kind{}) {
			out[o.vpc]++
		}
	}
	return out
}

// NIC is what is to be known of one, of a provider whose ports may be made before they are needed.
type NIC struct {
	VPC        string // the VPC object
	Host, Node string // where its port is, or is to be: to the provider, and the Node's name
	Port       string // the ID of its port, as recorded; empty: none
	// Request is what is asked of the provider for a new port; nil: it takes none of the pool's, or
	// is over.
	Request *vpcport.NewPort
}

// noted is a NIC with the kind of port that it asks for; zero: none.
type noted struct {
	NIC
	kind Kind
	cold bool // it asked, and none was ready
}

// demand is a kind of which ports are needed.
type demand struct {
	kind    Kind
	request vpcport.NewPort // for one of the kind, but for device and name
	nics    int             // that have or want one
	used    time.Time       // when there was one last, where there is none
	making  int             // ports that are being made
	unclear []string        // devices of ports that may have been made, to be asked for again
	of      string          // the UID of the VPC object that those are of
	failed  failure
}

// Note takes in what is true of a NIC by now.
func (p *Pool) Note(uid types.UID, n NIC) {
	after := noted{NIC: n}
	if n.Request != nil {
		after.kind, _ = KindOf(n.VPC, *n.Request)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	before, known := p.nics[uid]
	after.cold = before.cold
	p.nics[uid] = after
	if d := p.demands[after.kind]; d != nil {
		d.request = *n.Request // as the VPC is by now
	}
	if known && before.kind == after.kind && before.Host == n.Host && before.Node == n.Node {
		return
	}
	if known {
		p.leaves(before)
	}
	p.comes(after)
	p.wake.Set()
}

// Forget drops a NIC whose PodNIC is gone.
func (p *Pool) Forget(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n, known := p.nics[uid]; known {
		delete(p.nics, uid)
		p.leaves(n)
		p.wake.Set()
	}
}

// comes counts a NIC. p.mu is held.
func (p *Pool) comes(n noted) {
	p.onHost[n.Host]++
	if n.Host != "" && n.Node != "" {
		p.nodes[n.Host] = n.Node
	}
	if n.kind == (Kind{}) {
		return
	}
	d := p.demands[n.kind]
	if d == nil {
		d = &demand{kind: n.kind, request: *n.Request}
		p.demands[n.kind] = d
	}
	d.nics++
}

// leaves counts one less. p.mu is held.
func (p *Pool) leaves(n noted) {
	if p.onHost[n.Host]--; p.onHost[n.Host] == 0 {
		delete(p.onHost, n.Host)
	}
	if d := p.demands[n.kind]; d != nil {
		d.nics--
		d.used = p.o.Clock.Now()
	}
}

// isUsed tells whether there are to be ports of a kind at a moment.
func (d *demand) isUsed(now time.Time, idle time.Duration) bool {
	return d.nics > 0 || now.Sub(d.used) < idle
}

// tidy forgets the kinds that nobody has needed for long, and hosts that nothing is on. p.mu is
// held.
func (p *Pool) tidy(now time.Time) {
	on := map[string]bool{}
	for k, d := range p.demands {
		if !d.isUsed(now, p.o.Idle) && d.making == 0 {
			delete(p.demands, k)
			continue
		}
		on[k.Host] = true
	}
	for _, o := range p.ports {
		on[o.port.Host] = true
	}
	for host := range p.nodes {
		if !on[host] && p.onHost[host] == 0 {
			delete(p.nodes, host)
		}
	}
}
