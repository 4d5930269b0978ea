// Package portfake is an in-memory VPC port provider with Neutron's rules for addresses, MAC addresses, bindings and revisions. The cost of
// a call depends only on what it changes or returns. The fake can delay calls, limit their concurrency, make them fail, and let listings
// lag behind.
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

// Options configure the provider. The zero value replies immediately and accepts 64 ports per call.
type Options struct {
	Clock   clock.Clock   // nil: the machine's clock
	Latency time.Duration // from a call to its effect and reply
	AtOnce  int           // maximum number of calls in flight, others wait; 0: no maximum
	// Lag is how far Ports lags behind. Get does not lag.
	Lag    time.Duration
	Traits vpcport.Traits // zero: MAC addresses, revisions, 64 ports in a call, 100 values in a filter
	// Project is the ID of the project of the credentials; empty: project.
	Project string
}

// Provider is the provider as one client sees it. Create it with New, then add a network and hosts. It is safe for concurrent use.
type Provider struct {
	Front   *Front // delays, faults and the log of calls
	options Options
	clock   clock.Clock
	state   *state
	via     func(ctx context.Context, call func(context.Context) error) error // the client's function; nil: none
}

// state holds the networks, hosts, groups and ports.
type state struct {
	mu       sync.Mutex // guards the fields below, including ports
	networks map[string]vpcport.Network
	hosts    map[string]vpcport.Plug // how the agent of a host plugs
	groups   map[string]bool
	quota    int // 0: no quota
	ports    *ports
	traits   vpcport.Traits
}

// ports holds the ports, the addresses that they use, and the state that listings show.
type ports struct {
	clock clock.Clock
	lag   time.Duration // of listings
	byID  map[string]*port
	macs  map[string]string // port by network and MAC address
	ips   map[fixedIP]string
	// lowest are addresses below which none is free, by network and subnet.
	lowest map[string]netip.Addr
	shown  map[string]vpcport.Port // the state in listings
	trail  []change                // later changes, oldest first
	made   int                     // number of ports so far, used for IDs
	torn   []string                // calls that deleted or moved plugged ports
}

// port is a port with its internal state.
type port struct {
	vpcport.Port
	pluggedAt string // the host where it is plugged; empty: none
}

type fixedIP struct {
	network string
	ip      netip.Addr
}

// change is the state of a port from a time on; nil: deleted.
type change struct {
	at   time.Time
	id   string
	port *vpcport.Port
}

var _ vpcport.Provider = (*Provider)(nil)

// New returns an empty provider.
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
			ports: &ports{clock: o.Clock, lag: o.Lag, byID: map[string]*port{}, macs: map[string]string{}, ips: map[fixedIP]string{}, lowest: map[string]netip.Addr{}, shown: map[string]vpcport.Port{}},
		},
	}
	if o.AtOnce > 0 {
		p.Front.atOnce = make(chan struct{}, o.AtOnce)
	}
	return p
}

// Client returns the same provider for another client: do makes each of the client's calls, and may refuse the call or cancel its context.
func (p *Provider) Client(do func(ctx context.Context, call func(context.Context) error) error) *Provider {
	n := *p
	n.via = do
	return &n
}

// AddNetwork adds or replaces a network.
func (p *Provider) AddNetwork(n vpcport.Network) { p.set(func() { p.state.networks[n.ID] = n }) }

// RemoveNetwork removes a network. Its ports remain.
func (p *Provider) RemoveNetwork(id string) { p.set(func() { delete(p.state.networks, id) }) }

// AddHost adds a host whose agent plugs ports as given.
func (p *Provider) AddHost(name string, plug vpcport.Plug) {
	p.set(func() { p.state.hosts[name] = plug })
}

// RemoveHost removes the agent of a host: new bindings fail there.
func (p *Provider) RemoveHost(name string) { p.set(func() { delete(p.state.hosts, name) }) }

// AddGroup adds a security group.
func (p *Provider) AddGroup(id string) { p.set(func() { p.state.groups[id] = true }) }

// SetQuota sets the maximum number of ports; 0: no maximum.
func (p *Provider) SetQuota(ports int) { p.set(func() { p.state.quota = ports }) }

// Plug reports that a port was plugged at a host. As with OVN, the port becomes active only if it is already bound there.
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

// Unplug reports that a port was unplugged.
func (p *Provider) Unplug(id string) {
	p.set(func() {
		if o := p.state.ports.byID[id]; o != nil {
			o.pluggedAt = ""
			p.state.ports.changed(o, func() { o.Status = vpcport.StatusDown })
		}
	})
}

// AddPort adds a port of another client and returns it. It chooses a missing ID or MAC address.
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

// Touch changes a port as another client would.
func (p *Provider) Touch(id string, edit func(*vpcport.Port)) {
	p.set(func() {
		if o := p.state.ports.byID[id]; o != nil {
			p.state.ports.changed(o, func() { edit(&o.Port) })
		}
	})
}

// Remove deletes a port as another client would.
func (p *Provider) Remove(id string) {
	p.set(func() {
		if o := p.state.ports.byID[id]; o != nil {
			p.state.ports.drop(o)
		}
	})
}

// Torn returns the calls that deleted plugged ports or bound them elsewhere.
func (p *Provider) Torn() []string {
	p.state.mu.Lock()
	defer p.state.mu.Unlock()
	return slices.Clone(p.state.ports.torn)
}

// tears records that a call deletes or moves a plugged port. state.mu is held.
func (ps *ports) tears(o *port, op string) {
	if o.pluggedAt != "" {
		ps.torn = append(ps.torn, fmt.Sprintf("%s of port %s, which is plugged at %s", op, o.ID, o.pluggedAt))
	}
}

// All returns all ports, ordered by ID, without lag.
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

// enter adds a new port. state.mu is held, as in all methods below.
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
		if key := o.NetworkID + " " + a.SubnetID; a.IP.Less(ps.lowest[key]) {
			ps.lowest[key] = a.IP
		}
	}
	ps.trail = append(ps.trail, change{at: ps.clock.Now(), id: o.ID})
}

// changed changes a port and its revision.
func (ps *ports) changed(o *port, edit func()) {
	edit()
	o.Revision++
	now := copied(o.Port)
	ps.trail = append(ps.trail, change{at: ps.clock.Now(), id: o.ID, port: &now})
}

// listed returns the state that listings show.
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

// portID returns the ID of the nth port: a UUID that differs from the others in its first characters.
func portID(n int) string { return fmt.Sprintf("%08x-%04x-4000-8000-%012x", n, n>>8&0xffff, n) }
