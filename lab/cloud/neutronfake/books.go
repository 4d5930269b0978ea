package neutronfake

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
)

// Options say how the services behave. The zero value is Neutron as it is installed.
type Options struct {
	Clock clock.Clock // the machine's when nil
	// Lag is how old a listing of ports may be. A look at one port is never old.
	Lag time.Duration
	// TokenLife is how long a token is good for; 0: an hour (Keystone's default).
	TokenLife time.Duration
	// MaxPage is the most ports, networks or subnets of a page (pagination_max_limit);
	// 0: any number, and pages only if they are asked for.
	MaxPage int
	// MaxBody is the largest request that is read, in bytes; 0: 114,688
	// (oslo.middleware, max_request_body_size).
	MaxBody int64
	// Region is the region of the catalog; empty: RegionOne.
	Region string
}

// The project that there is without Keystone, and that things get for which none is named.
const firstProject = "5f1c0a0e9d0b4e0f8d8f2c7d6b5a4930"

// Cloud is the services and their books. Make it with New, then fill it. It is safe for
// concurrent use.
type Cloud struct {
	options Options
	clock   clock.Clock

	mu       sync.Mutex // guards all below; nobody waits or talks under it
	users    []User
	tokens   map[string]token
	catalog  string // Neutron's URL in the catalog; empty: that by which Keystone was reached
	networks map[string]Network
	subnets  map[string]Subnet
	groups   map[string]Group
	hosts    map[string]Host
	ports    map[string]*Port
	ips      map[place]int // ports that have an address of a network
	macs     map[string]int
	trail    trail
	quota    int // ports of a project; below 0: any number
	made     int // things ever made, of which their IDs are
	faults   []*Fault
	calls    []Call

	changed chan struct{} // of room for one
}

// New returns services without anything in them. Without a user there is no Keystone in
// front of Neutron (auth_strategy noauth), and requests name the project themselves.
func New(o Options) *Cloud {
	if o.Clock == nil {
		o.Clock = clock.Real{}
	}
	o.TokenLife = cmp.Or(o.TokenLife, time.Hour)
	o.MaxBody = cmp.Or(o.MaxBody, 114688)
	o.Region = cmp.Or(o.Region, "RegionOne")
	return &Cloud{
		options: o, clock: o.Clock, tokens: map[string]token{}, networks: map[string]Network{}, subnets: map[string]Subnet{},
		groups: map[string]Group{}, hosts: map[string]Host{}, ports: map[string]*Port{}, ips: map[place]int{}, macs: map[string]int{}, trail: trail{shown: map[string]Port{}}, quota: -1,
		changed: make(chan struct{}, 1),
	}
}

// AddNetwork adds a network, or replaces the one with its ID, and returns it with what it
// lacked.
func (c *Cloud) AddNetwork(n Network) Network {
	c.set(func() {
		n.ID = cmp.Or(n.ID, c.newID())
		n.Project = cmp.Or(n.Project, firstProject)
		n.MTU = cmp.Or(n.MTU, 1442)
		c.networks[n.ID] = n
		c.tell()
	})
	return n
}

// RemoveNetwork removes a network. What is in it stays.
func (c *Cloud) RemoveNetwork(id string) { c.set(func() { delete(c.networks, id); c.tell() }) }

// AddSubnet adds a subnet, or replaces the one with its ID, and returns it with what it
// lacked.
func (c *Cloud) AddSubnet(s Subnet) Subnet {
	c.set(func() {
		s.ID = cmp.Or(s.ID, c.newID())
		c.subnets[s.ID] = s
		c.tell()
	})
	return s
}

// AddGroup adds a security group, or replaces the one with its ID, and returns it with what
// it lacked.
func (c *Cloud) AddGroup(g Group) Group {
	c.set(func() {
		g.ID = cmp.Or(g.ID, c.newID())
		g.Project = cmp.Or(g.Project, firstProject)
		c.groups[g.ID] = g
		c.tell()
	})
	return g
}

// SetQuota says how many ports a project may have; below 0: any number.
func (c *Cloud) SetQuota(ports int) { c.set(func() { c.quota = ports }) }

// AddPort puts a port there that another client made, as it is told, and returns it with
// what it lacked: ID, MAC address, project, status.
func (c *Cloud) AddPort(p Port) Port {
	c.set(func() {
		p.ID = cmp.Or(p.ID, c.newID())
		p.MAC = cmp.Or(p.MAC, c.newMAC())
		p.Project = cmp.Or(p.Project, firstProject)
		p.Status = cmp.Or(p.Status, "DOWN")
		p.VIF.Type = cmp.Or(p.VIF.Type, "unbound")
		p.Created = c.clock.Now()
		c.enter(&p)
	})
	return p.copied()
}

// Edit changes a port as another client would, and so its revision. It tells whether
// there is such a port.
func (c *Cloud) Edit(id string, edit func(*Port)) (ok bool) {
	c.set(func() {
		p := c.ports[id]
		if ok = p != nil; ok {
			c.index(p, -1)
			c.change(p, func() { edit(p) })
			c.index(p, 1)
		}
	})
	return ok
}

// Remove deletes a port as another client would.
func (c *Cloud) Remove(id string) { c.set(func() { c.drop(id) }) }

// Ports are all ports as they are, by ID.
func (c *Cloud) Ports() (out []Port) {
	c.set(func() {
		for _, id := range slices.Sorted(maps.Keys(c.ports)) {
			out = append(out, c.ports[id].copied())
		}
	})
	return out
}

// set does something with the books.
func (c *Cloud) set(do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	do()
}

// enter puts a port into the books. c.mu is held here and below.
func (c *Cloud) enter(p *Port) {
	c.ports[p.ID] = p
	c.index(p, 1)
	c.change(p, func() {})
}

// place is an address of a network, and onNetwork a MAC address.
type place struct {
	network string
	ip      netip.Addr
}

func onNetwork(network, mac string) string { return network + " " + strings.ToLower(mac) }

// index counts a port among those that have its addresses, or no longer (by -1).
func (c *Cloud) index(p *Port, by int) {
	for _, f := range p.FixedIPs {
		if c.ips[place{p.Network, f.IP}] += by; c.ips[place{p.Network, f.IP}] == 0 {
			delete(c.ips, place{p.Network, f.IP})
		}
	}
	if c.macs[onNetwork(p.Network, p.MAC)] += by; c.macs[onNetwork(p.Network, p.MAC)] == 0 {
		delete(c.macs, onNetwork(p.Network, p.MAC))
	}
}

// change changes a port, which has another revision from then on.
func (c *Cloud) change(p *Port, edit func()) {
	edit()
	p.Revision++
	p.Updated = c.clock.Now()
	now := p.copied()
	c.trail.add(c.clock.Now(), p.ID, &now)
	c.tell()
}

func (c *Cloud) drop(id string) {
	if p, ok := c.ports[id]; ok {
		c.index(p, -1)
		delete(c.ports, id)
		c.trail.add(c.clock.Now(), id, nil)
		c.tell()
	}
}

// newID is a UUID that nothing had before, and that differs from others in its first
// characters, as Neutron's do.
func (c *Cloud) newID() string {
	c.made++
	n := uint64(c.made) * 0x9e3779b97f4a7c15 // spreads neighbours apart (Knuth, multiplicative hashing)
	return fmt.Sprintf("%08x-%04x-4%03x-8%03x-%012x", n>>32, n>>16&0xffff, n>>4&0xfff, n&0xfff, c.made)
}

// newMAC is a MAC address with Neutron's prefix (base_mac).
func (c *Cloud) newMAC() string {
	c.made++
	return fmt.Sprintf("fa:16:3e:%02x:%02x:%02x", c.made>>16&0xff, c.made>>8&0xff, c.made&0xff)
}

func (p *Port) copied() Port {
	out := *p
	out.FixedIPs, out.Groups, out.VIF.Details = slices.Clone(p.FixedIPs), slices.Clone(p.Groups), maps.Clone(p.VIF.Details)
	out.Tags = slices.Clone(p.Tags)
	return out
}
