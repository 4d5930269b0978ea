// Package portfake is a provider of VPC ports in memory: the books of networks and ports
// with Neutron's rules for addresses, MAC addresses, bindings and revisions, in which no
// call costs more than what it changes or returns. Before the books are a delay for
// every call and a number of calls at a time; faults that tests inject; and listings that
// trail behind the truth.
//
//	portfake.go  the books, and what tests put into them and read from them
//	calls.go     the calls of vpcport.Provider
//	create.go    what becomes of a new port
//	faults.go    calls that fail
package portfake

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/mac"
	"github.com/berthnet/berth/internal/vpcport"
)

// Options say how the provider behaves. The zero value answers at once, takes 64 ports of
// one call, and refuses nothing.
type Options struct {
	Clock   clock.Clock   // the machine's when nil
	Latency time.Duration // from a call to its effect and reply
	AtOnce  int           // calls that are worked on at once, the others wait; 0: any number
	// Lag is how old a listing may be: changes show in Ports after it. Get shows them
	// at once.
	Lag    time.Duration
	Traits vpcport.Traits // zero: all that there is, 64 ports of a call, 100 values of a filter
	// Project is the ID of the project of the credentials; empty: project.
	Project string
}

// Provider is the provider, as one program calls it. Make it with New, then add a network and hosts.
// It is safe for concurrent use.
type Provider struct {
	Front   *Front // what a call passes: delay, faults; and the log of calls
	options Options
	clock   clock.Clock
	state   *state
	via     func(ctx context.Context, call func(context.Context) error) error // nil: no client in between
}

// state is what there is.
type state struct {
	mu       sync.Mutex // guards all below, and what ports has
	networks map[string]vpcport.Network
	hosts    map[string]vpcport.Plug // with an agent, and how it plugs
	groups   map[string]bool
	quota    int // 0: none
	ports    *ports
	traits   vpcport.Traits
}

// ports are the ports with what is taken by them, and what listings show of them.
type ports struct {
	clock clock.Clock
	lag   time.Duration // of listings
	byID  map[string]*port
	macs  map[string]string // port by network and MAC address
	ips   map[fixedIP]string
	shown map[string]vpcport.Port // what listings show
	trail []change                // what they do not show yet, oldest first
	made  int                     // so far; IDs follow from it
	torn  []string                // what calls did to ports that were plugged
}

// port is a port with what its owner does not see.
type port struct {
	vpcport.Port
	pluggedAt string // the host at which somebody plugged it; empty: nowhere
}

type fixedIP struct {
	network string
	ip      netip.Addr
}

// change is a port as it was from a moment on; nil once it is gone.
type change struct {
	at   time.Time
	id   string
	port *vpcport.Port
}

var _ vpcport.Provider = (*Provider)(nil)

// New returns a provider without anything in it.
func New(o Options) *Provider {
	if o.Clock == nil {
		o.Clock = clock.Real{}
	}
	if o.Traits == (vpcport.Traits{}) {
		o.Traits = vpcport.Traits{MaxBatch: 64, MaxFilter: 100, ChosenMAC: true, Revisions: true}
	}
	o.Project = cmp.Or(o.Project, "project")
	p := &Provider{
		options: o, clock: o.Clock, Front: &Front{clock: o.Clock, latency: o.Latency},
		state: &state{
			networks: map[string]vpcport.Network{}, hosts: map[string]vpcport.Plug{}, groups: map[string]bool{}, traits: o.Traits,
			ports: &ports{clock: o.Clock, lag: o.Lag, byID: map[string]*port{}, macs: map[string]string{}, ips: map[fixedIP]string{}, shown: map[string]vpcport.Port{}},
		},
	}
	if o.AtOnce > 0 {
		p.Front.atOnce = make(chan struct{}, o.AtOnce)
	}
	return p
}

// Client returns the same provider as another program calls it: each call by do, which may refuse
// it or end its context.
func (p *Provider) Client(do func(ctx context.Context, call func(context.Context) error) error) *Provider {
	n := *p
	n.via = do
	return &n
}

// AddNetwork adds or replaces a network.
func (p *Provider) AddNetwork(n vpcport.Network) { p.set(func() { p.state.networks[n.ID] = n }) }

// RemoveNetwork removes a network. Its ports stay.
func (p *Provider) RemoveNetwork(id string) { p.set(func() { delete(p.state.networks, id) }) }

// AddHost adds a host with an agent, which plugs as it is told.
func (p *Provider) AddHost(name string, plug vpcport.Plug) {
	p.set(func() { p.state.hosts[name] = plug })
}

// RemoveHost takes a host's agent away: nothing new is bound there.
func (p *Provider) RemoveHost(name string) { p.set(func() { delete(p.state.hosts, name) }) }

// AddGroup adds a security group.
func (p *Provider) AddGroup(id string) { p.set(func() { p.state.groups[id] = true }) }

// SetQuota says how many ports there may be; 0: any number.
func (p *Provider) SetQuota(ports int) { p.set(func() { p.state.quota = ports }) }

// Plug says that somebody plugged a port at a host. It becomes active if it is bound
// there, which no later binding makes up for: so it is with OVN.
func (p *Provider) Plug(id, host string) {
	p.set(func() {
		if o := p.state.ports.byID[id]; o != nil {
			o.pluggedAt = host
			if o.Binding.Result == vpcport.Bound && o.Host == host {
				p.state.ports.changed(o, func() { o.Status = vpcport.StatusActive })
			}
		}
	})
}

// Unplug says that a port is plugged nowhere any more.
func (p *Provider) Unplug(id string) {
	p.set(func() {
		if o := p.state.ports.byID[id]; o != nil {
			o.pluggedAt = ""
			p.state.ports.changed(o, func() { o.Status = vpcport.StatusDown })
		}
	})
}

// AddPort puts a port there that somebody else made, and returns it with what it lacks.
func (p *Provider) AddPort(want vpcport.Port) vpcport.Port {
	p.state.mu.Lock()
	defer p.state.mu.Unlock()
	p.state.ports.made++
	want.ID = cmp.Or(want.ID, portID(p.state.ports.made))
	if want.MAC == nil {
		want.MAC = mac.Addr{0xfa, 0x16, 0x3e, byte(p.state.ports.made >> 16), byte(p.state.ports.made >> 8), byte(p.state.ports.made)}
	}
	want.CreatedAt = p.clock.Now()
	o := &port{Port: want}
	p.state.ports.enter(o)
	return copied(o.Port)
}

// Touch changes a port behind the backs of all, as somebody else would.
func (p *Provider) Touch(id string, edit func(*vpcport.Port)) {
	p.set(func() {
		if o := p.state.ports.byID[id]; o != nil {
			p.state.ports.changed(o, func() { edit(&o.Port) })
		}
	})
}

// Remove deletes a port behind the backs of all.
func (p *Provider) Remove(id string) {
	p.set(func() {
		if o := p.state.ports.byID[id]; o != nil {
			p.state.ports.drop(o)
		}
	})
}

// Torn tells which ports calls deleted, or bound elsewhere, while somebody had them plugged.
func (p *Provider) Torn() []string {
	p.state.mu.Lock()
	defer p.state.mu.Unlock()
	return slices.Clone(p.state.ports.torn)
}

// tears notes that a call takes a port from where it is plugged. state.mu is held.
func (ps *ports) tears(o *port, op string) {
	if o.pluggedAt != "" {
		ps.torn = append(ps.torn, fmt.Sprintf("%s of port %s, which %s has plugged", op, o.ID, o.pluggedAt))
	}
}

// All are all ports as they are, by ID.
func (p *Provider) All() []vpcport.Port {
	p.state.mu.Lock()
	defer p.state.mu.Unlock()
	out := make([]vpcport.Port, 0, len(p.state.ports.byID))
	for _, id := range slices.Sorted(maps.Keys(p.state.ports.byID)) {
		out = append(out, copied(p.state.ports.byID[id].Port))
	}
	return out
}

func (p *Provider) set(do func()) {
	p.state.mu.Lock()
	defer p.state.mu.Unlock()
	do()
}

// enter puts a new port into the books. state.mu is held, as in all below.
func (ps *ports) enter(o *port) {
	ps.byID[o.ID] = o
	ps.macs[o.NetworkID+" "+o.MAC.String()] = o.ID
	for _, a := range o.Addresses {
		ps.ips[fixedIP{o.NetworkID, a.IP}] = o.ID
	}
	ps.changed(o, func() {})
}

func (ps *ports) drop(o *port) {
	delete(ps.byID, o.ID)
	delete(ps.macs, o.NetworkID+" "+o.MAC.String())
	for _, a := range o.Addresses {
		delete(ps.ips, fixedIP{o.NetworkID, a.IP})
	}
	ps.trail = append(ps.trail, change{at: ps.clock.Now(), id: o.ID})
}

// changed makes a change of a port, which has another revision from then on.
func (ps *ports) changed(o *port, edit func()) {
	edit()
	o.Revision++
	now := copied(o.Port)
	ps.trail = append(ps.trail, change{at: ps.clock.Now(), id: o.ID, port: &now})
}

// listed is what a listing shows.
func (ps *ports) listed() map[string]vpcport.Port {
	until, shows := ps.clock.Now().Add(-ps.lag), 0
	for _, c := range ps.trail {
		if c.at.After(until) {
			break
		}
		shows++
		if c.port == nil {
			delete(ps.shown, c.id)
		} else {
			ps.shown[c.id] = *c.port
		}
	}
	ps.trail = ps.trail[shows:]
	return ps.shown
}

func copied(o vpcport.Port) vpcport.Port {
	o.Addresses, o.Groups, o.MAC = slices.Clone(o.Addresses), slices.Clone(o.Groups), slices.Clone(o.MAC)
	return o
}

// portID is the ID of the nth port: a UUID whose first characters are not those of others.
func portID(n int) string { return fmt.Sprintf("%08x-%04x-4000-8000-%012x", n, n>>8&0xffff, n) }
