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

// VPC is an open VPC as the pool needs it.
type VPC struct {
	UID      string // of its object
	Network  string // the ID
	Provider vpcport.Provider
	Families int  // how many IP families each port has an address of; 0: one
	Ports    int  // how many ports of each kind a node has; 0: none
	Ending   bool // it is being deleted
}

// Options are the settings of a Pool. Zero durations take the defaults named.
type Options struct {
	Cluster string
	// VPC returns a VPC; false: it has no warm ports. It does no I/O.
	VPC func(name string) (VPC, bool)
	// Most is how many ports of all VPCs a Node may have. It does no I/O.
	Most func(ctx context.Context, node string) int
	// Exists reports whether there is a VPC object with a UID, open or not. It does no I/O.
	Exists func(uid string) bool
	// Recorded returns the IDs of the ports of all PodNICs as the API server has them, and of the ports that
	// NICs of this process have.
	Recorded func(ctx context.Context) (map[string]bool, error)

	Clock   clock.Clock
	Logger  *slog.Logger
	Metrics *Metrics

	// Freed is called with a VPC after one of its ports was deleted. It must return quickly; nil: it is
	// not called.
	Freed func(vpc string)

	// Settle is how long the effect of an earlier operator's call may take to show; 1 min.
	Settle time.Duration
	// Idle is for how long a kind has ports after a NIC last had one; 10 min.
	Idle time.Duration
	// Keep is for how long a surplus port is kept while there is room; 1 min.
	Keep time.Duration
}

// Pool has the ports of all VPCs that no NIC has. It may be used concurrently.
type Pool struct {
	o    Options
	wake retry.Signal

	mu       sync.Mutex // guards all below; nothing is called under it but Logger and Metrics
	nics     map[types.UID]noted
	onHost   map[string]int    // how many NICs each host has
	nodes    map[string]string // the names of Nodes, by host
	demands  map[Kind]*demand
	ports    map[string]*stocked  // by ID
	creating map[string]bool      // devices of ports that are being created
	taken    map[string]time.Time // when ports were taken, by ID, until listings show them as a NIC's
	found    map[string]time.Time // when a VPC was listed first, by its object's UID
	again    map[string]time.Time // when the first listing is tried again, likewise
	short    map[string]time.Time // when a NIC last found no address or quota that warm ports have, by the VPC's name
}

// stocked is a port of the pool.
type stocked struct {
	vpc, uid string // the VPC object
	port     vpcport.Port
	kind     Kind          // zero: it serves no demand
	since    time.Time     // when it was known
	found    bool          // an earlier operator created it, and may have deleted it since
	doomed   bool          // its deletion was tried, or no NIC may have it
	spare    time.Time     // since when it is surplus; zero: it is not
	deleting bool          // it is being deleted
	again    retry.Backoff // of its deletion
}

// New returns a pool. It works while Run does.
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
		ports: map[string]*stocked{}, creating: map[string]bool{}, taken: map[string]time.Time{}, found: map[string]time.Time{}, again: map[string]time.Time{}, short: map[string]time.Time{},
	}
}

// Take takes a port for a NIC without one that would ask for n in a VPC; false: there is none like that. The
// port never returns to the pool: if no PodNIC records it, it is deleted.
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
	if asks := p.nics[uid]; best != nil || !asks.cold { // each NIC counts once
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

// Yield gives up the ports of a VPC for a while: its provider had no address or no quota left for a NIC's port. They
// can be taken until they are deleted.
func (p *Pool) Yield(vpc string) {
	now := p.o.Clock.Now()
	p.edit(func() { p.short[vpc] = now })
	p.wake.Set()
}

// yields reports whether the ports of a VPC are given up.
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

// Changed wakes the pool: a VPC or a Node has changed.
func (p *Pool) Changed() { p.wake.Set() }

// Run keeps the pool until ctx ends, and waits for the calls in flight then.
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

// The longest and the shortest time between two rounds.
const (
	atLeast = 10 * time.Second
	atMost  = 200 * time.Millisecond
)

// Ready is how many ports can be taken, by VPC.
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

// NIC is a NIC as the pool needs it, of a provider with warm ports.
type NIC struct {
	VPC        string // the VPC object
	Host, Node string // where its port is or is to be bound: the provider's name and the Node's
	Port       string // the ID of its recorded port; empty: none
	// Request is what a new port would be asked for with; nil: the NIC takes no warm port.
	Request *vpcport.NewPort
}

// noted is a NIC with the kind of port that it asks for; zero: none.
type noted struct {
	NIC
	kind Kind
	cold bool // it asked for a port, and none was ready
}

// demand is a kind of ports that NICs ask for.
type demand struct {
	kind    Kind
	request vpcport.NewPort // without device and name
	nics    int             // NICs that have or want one
	used    time.Time       // when the last NIC left, if there is none
	making  int             // ports that are being created
	unclear []string        // devices of ports that a failed call may have created, to be asked for again
	of      string          // the UID of their VPC object
	failed  retry.Backoff
}

// Note adds or updates a NIC.
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
		d.request = *n.Request // the VPC may have changed
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

// comes adds a NIC to the counts. p.mu is held.
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

// leaves removes a NIC from the counts. p.mu is held.
func (p *Pool) leaves(n noted) {
	if p.onHost[n.Host]--; p.onHost[n.Host] == 0 {
		delete(p.onHost, n.Host)
	}
	if d := p.demands[n.kind]; d != nil {
		d.nics--
		d.used = p.o.Clock.Now()
	}
}

// isUsed reports whether a kind is to have ports.
func (d *demand) isUsed(now time.Time, idle time.Duration) bool {
	return d.nics > 0 || now.Sub(d.used) < idle
}

// tidy drops kinds that nobody has needed for long, and hosts without ports and NICs. p.mu is held.
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
