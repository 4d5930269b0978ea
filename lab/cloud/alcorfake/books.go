package alcorfake

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/berthnet/berth/internal/clock"
)

// Options say how the managers behave.
type Options struct {
	Clock clock.Clock // the machine's when nil
	// Lower has statuses told in lower case, as old releases do.
	Lower bool
	// Networks has a listing of VPCs called networks, as some releases do, and vpcs else.
	Networks bool
	// Unfiltered has the managers not heed queries: their database's records lack the
	// fields.
	Unfiltered bool
}

// The project that things get for which none is named.
const firstProject = "3dda2801-d675-4688-a63f-dcda8d327f50"

// Cloud is the managers and their books. Make it with New, then fill it. It is safe for
// concurrent use.
type Cloud struct {
	options Options
	clock   clock.Clock

	mu       sync.Mutex // guards all below; nobody waits or talks under it
	networks map[string]Network
	subnets  map[string]Subnet
	groups   map[string]bool
	hosts    map[string]Host
	ports    map[string]*Port
	ignored  []string
	made     int // things ever made, of which their IDs are
	faults   []*Fault
	calls    []Call
	watchers map[chan struct{}]bool // of room for one
}

// New returns managers without anything in them.
func New(o Options) *Cloud {
	if o.Clock == nil {
		o.Clock = clock.Real{}
	}
	return &Cloud{
		options: o, clock: o.Clock, networks: map[string]Network{}, subnets: map[string]Subnet{}, groups: map[string]bool{},
		hosts: map[string]Host{}, ports: map[string]*Port{}, watchers: map[chan struct{}]bool{},
	}
}

// AddNetwork adds a VPC, or replaces the one with its ID, and returns it with what it
// lacked.
func (c *Cloud) AddNetwork(n Network) Network {
	c.set(func() {
		n.ID = cmp.Or(n.ID, c.newID())
		n.Project = cmp.Or(n.Project, firstProject)
		n.MTU = cmp.Or(n.MTU, 1450)
		c.networks[n.ID] = n
	})
	return n
}

// RemoveNetwork removes a VPC. What is in it stays.
func (c *Cloud) RemoveNetwork(id string) { c.set(func() { delete(c.networks, id) }) }

// AddSubnet adds a subnet, or replaces the one with its ID, and returns it with what it
// lacked.
func (c *Cloud) AddSubnet(s Subnet) Subnet {
	c.set(func() {
		s.ID = cmp.Or(s.ID, c.newID())
		c.subnets[s.ID] = s
	})
	return s
}

// AddGroup adds a security group and returns its ID.
func (c *Cloud) AddGroup() (id string) {
	c.set(func() {
		id = c.newID()
		c.groups[id] = true
	})
	return id
}

// AddHost registers a node, or replaces it.
func (c *Cloud) AddHost(name string, h Host) { c.set(func() { c.hosts[name] = h }) }

// RemoveHost takes a node out of the node manager.
func (c *Cloud) RemoveHost(name string) { c.set(func() { delete(c.hosts, name) }) }

// AddPort puts a port there that another client made, as it is told, and returns it with
// what it lacked: ID, MAC address, project.
func (c *Cloud) AddPort(p Port) Port {
	c.set(func() {
		p.ID = cmp.Or(p.ID, c.newID())
		p.MAC = cmp.Or(p.MAC, c.newMAC())
		p.Project = cmp.Or(p.Project, firstProject)
		p.Created = c.clock.Now()
		own := p.copied()
		c.ports[p.ID] = &own
		c.tell()
	})
	return p.copied()
}

// Edit changes a port as another client would. It tells whether there is such a port.
func (c *Cloud) Edit(id string, edit func(*Port)) (ok bool) {
	c.set(func() {
		p := c.ports[id]
		if ok = p != nil; ok {
			edit(p)
			c.tell()
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

// Programmed says that the agent of the host has a port ready, or cannot.
func (c *Cloud) Programmed(port, host string, ok bool) {
	c.set(func() {
		p := c.ports[port]
		if p == nil || p.Host != host {
			return
		}
		if p.Status = "ACTIVE"; !ok {
			p.Status = "FAILED"
		}
	})
}

// Ignored are what requests named and Alcor does not know, such as "port.subnett".
func (c *Cloud) Ignored() (out []string) {
	c.set(func() { out = slices.Clone(c.ignored) })
	return out
}

// set does something with the books.
func (c *Cloud) set(do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	do()
}

func (c *Cloud) drop(id string) {
	delete(c.ports, id)
	c.tell()
}

// watch has something to receive after ports changed, until stop.
func (c *Cloud) watch() (changes <-chan struct{}, stop func()) {
	w := make(chan struct{}, 1)
	w <- struct{}{} // for what there is already
	c.set(func() { c.watchers[w] = true })
	return w, func() { c.set(func() { delete(c.watchers, w) }) }
}

// tell tells of a change. c.mu is held, as in all below.
func (c *Cloud) tell() {
	for w := range c.watchers {
		select {
		case w <- struct{}{}:
		default: // it is told of already
		}
	}
}

// newID is a UUID that nothing had before, and that differs from others in its first
// characters.
func (c *Cloud) newID() string {
	c.made++
	n := uint64(c.made) * 0x9e3779b97f4a7c15 // spreads neighbours apart (Knuth, multiplicative hashing)
	return fmt.Sprintf("%08x-%04x-4%03x-8%03x-%012x", n>>32, n>>16&0xffff, n>>4&0xfff, n&0xfff, c.made)
}

// newMAC is a MAC address with Alcor's prefix (macmanager.oui).
func (c *Cloud) newMAC() string {
	c.made++
	return fmt.Sprintf("aa:bb:cc:%02x:%02x:%02x", c.made>>16&0xff, c.made>>8&0xff, c.made&0xff)
}

// macTaken tells whether a port has a MAC address: the MAC manager has one list for all.
func (c *Cloud) macTaken(mac string) bool {
	for _, p := range c.ports {
		if strings.EqualFold(p.MAC, mac) {
			return true
		}
	}
	return false
}
