// Package portfake is a provider of VPC ports in memory: the books of networks and ports
// with Neutron's rules for addresses, MAC addresses, bindings and revisions, in which no
// call costs more than what it changes or returns. Before the books are a delay for
// every call and a number of calls at a time; faults that tests inject; and listings that
// trail behind the truth.
//
//	portfake.go  the books, and what tests put into them and read from them
//	calls.go     the calls of vpcport.Provider
//	client.go    the calls of one program among several
//	create.go    what becomes of a new port
//	faults.go    calls that fail
package portfake

import (
	"cmp"
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

// Provider is the provider. Make it with New, then add a network and hosts. It is safe
// for concurrent use.
type Provider struct {
	options Options
	clock   clock.Clock
	atOnce  chan struct{} // a token for each call that is worked on; nil: any number

	mu       sync.Mutex // guards all below
	networks map[string]vpcport.Network
	hosts    map[string]vpcport.Plug // with an agent, and how it plugs
	groups   map[string]bool
	ports    map[string]*port
	macs     map[string]string // port by network and MAC address
	ips      map[fixedIP]string
	shown    map[string]vpcport.Port // what listings show, with Lag
	trail    []change                // what they do not show yet, oldest first
	quota    int                     // 0: none
	made     int                     // ports ever made, of which their IDs are
	faults   []*Fault
	calls    []Call
	torn     []string // what calls did to ports that were plugged
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
		options: o, clock: o.Clock,
		networks: map[string]vpcport.Network{}, hosts: map[string]vpcport.Plug{}, groups: map[string]bool{},
		ports: map[string]*port{}, macs: map[string]string{}, ips: map[fixedIP]string{}, shown: map[string]vpcport.Port{},
	}
	if o.AtOnce > 0 {
		p.atOnce = make(chan struct{}, o.AtOnce)
	}
	return p
}

// AddNetwork adds or replaces a network.
func (p *Provider) AddNetwork(n vpcport.Network) { p.set(func() { p.networks[n.ID] = n }) }

// RemoveNetwork removes a network. Its ports stay.
func (p *Provider) RemoveNetwork(id string) { p.set(func() { delete(p.networks, id) }) }

// AddHost adds a host with an agent, which plugs as it is told.
func (p *Provider) AddHost(name string, plug vpcport.Plug) { p.set(func() { p.hosts[name] = plug }) }

// RemoveHost takes a host's agent away: nothing new is bound there.
func (p *Provider) RemoveHost(name string) { p.set(func() { delete(p.hosts, name) }) }

// AddGroup adds a security group.
func (p *Provider) AddGroup(id string) { p.set(func() { p.groups[id] = true }) }

// SetQuota says how many ports there may be; 0: any number.
func (p *Provider) SetQuota(ports int) { p.set(func() { p.quota = ports }) }

// Plug says that somebody plugged a port at a host. It becomes active if it is bound
// there, which no later binding makes up for: so it is with OVN.
func (p *Provider) Plug(id, host string) {
	p.set(func() {
		if o := p.ports[id]; o != nil {
			o.pluggedAt = host
			if o.Binding.Result == vpcport.Bound && o.Host == host {
				p.changed(o, func() { o.Status = vpcport.StatusActive })
			}
		}
	})
}

// Unplug says that a port is plugged nowhere any more.
func (p *Provider) Unplug(id string) {
	p.set(func() {
		if o := p.ports[id]; o != nil {
			o.pluggedAt = ""
			p.changed(o, func() { o.Status = vpcport.StatusDown })
		}
	})
}

// AddPort puts a port there that somebody else made, and returns it with what it lacks.
func (p *Provider) AddPort(want vpcport.Port) vpcport.Port {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.made++
	want.ID = cmp.Or(want.ID, portID(p.made))
	if want.MAC == nil {
		want.MAC = mac.Addr{0xfa, 0x16, 0x3e, byte(p.made >> 16), byte(p.made >> 8), byte(p.made)}
	}
	want.CreatedAt = p.clock.Now()
	o := &port{Port: want}
	p.enter(o)
	return copied(o.Port)
}

// Touch changes a port behind the backs of all, as somebody else would.
func (p *Provider) Touch(id string, edit func(*vpcport.Port)) {
	p.set(func() {
		if o := p.ports[id]; o != nil {
			p.changed(o, func() { edit(&o.Port) })
		}
	})
}

// Remove deletes a port behind the backs of all.
func (p *Provider) Remove(id string) {
	p.set(func() {
		if o := p.ports[id]; o != nil {
			p.drop(o)
		}
	})
}

// Torn tells which ports calls deleted, or bound elsewhere, while somebody had them plugged.
func (p *Provider) Torn() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.torn)
}

// tears notes that a call takes a port from where it is plugged. p.mu is held.
func (p *Provider) tears(o *port, op string) {
	if o.pluggedAt != "" {
		p.torn = append(p.torn, fmt.Sprintf("%s of port %s, which %s has plugged", op, o.ID, o.pluggedAt))
	}
}

// All are all ports as they are, by ID.
func (p *Provider) All() []vpcport.Port {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]vpcport.Port, 0, len(p.ports))
	for _, id := range slices.Sorted(maps.Keys(p.ports)) {
		out = append(out, copied(p.ports[id].Port))
	}
	return out
}

func (p *Provider) set(do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	do()
}

// enter puts a new port into the books. p.mu is held, as in all below.
func (p *Provider) enter(o *port) {
	p.ports[o.ID] = o
	p.macs[o.NetworkID+" "+o.MAC.String()] = o.ID
	for _, a := range o.Addresses {
		p.ips[fixedIP{o.NetworkID, a.IP}] = o.ID
	}
	p.changed(o, func() {})
}

func (p *Provider) drop(o *port) {
	delete(p.ports, o.ID)
	delete(p.macs, o.NetworkID+" "+o.MAC.String())
	for _, a := range o.Addresses {
		delete(p.ips, fixedIP{o.NetworkID, a.IP})
	}
	p.trail = append(p.trail, change{at: p.clock.Now(), id: o.ID})
}

// changed makes a change of a port, which has another revision from then on.
func (p *Provider) changed(o *port, edit func()) {
	edit()
	o.Revision++
	now := copied(o.Port)
	p.trail = append(p.trail, change{at: p.clock.Now(), id: o.ID, port: &now})
}

// listed is what a listing shows.
func (p *Provider) listed() map[string]vpcport.Port {
	until, shows := p.clock.Now().Add(-p.options.Lag), 0
	for _, c := range p.trail {
		if c.at.After(until) {
			break
		}
		shows++
		if c.port == nil {
			delete(p.shown, c.id)
		} else {
			p.shown[c.id] = *c.port
		}
	}
	p.trail = p.trail[shows:]
	return p.shown
}

func copied(o vpcport.Port) vpcport.Port {
	o.Addresses, o.Groups, o.MAC = slices.Clone(o.Addresses), slices.Clone(o.Groups), slices.Clone(o.MAC)
	return o
}

// portID is the ID of the nth port: a UUID whose first characters are not those of others.
func portID(n int) string { return fmt.Sprintf("%08x-%04x-4000-8000-%012x", n, n>>8&0xffff, n) }
