// Package alcorfake is Alcor (futurewei-cloud/alcor) over HTTP, with the books in memory: its
// port manager, what of its VPC and subnet managers is asked, and the agent of a node, which
// puts ports into network namespaces of VPCs. It is for tests and the lab. No real one runs
// here, so what it knows is what Alcor's entities, controllers and exceptions declare, with
// what is wrong there; it shares no code with what it tests.
//
// Ports can be listed, made (one or many), changed and deleted; VPCs and subnets be read.
// Everything else is put there by Go calls. What a request names and Alcor does not have is
// passed over, as Spring's Jackson does; Ignored tells of it.
//
//	books.go      what there is, and how tests change it
//	model.go      VPCs, subnets, ports
//	handler.go    one call: faults, routes, the log of calls
//	bodies.go     requests and replies, field by field
//	ports.go      making, changing and deleting ports
//	addresses.go  which address a port gets
//	list.go       listings
//	errors.go     refusals, as Spring tells them
//	faults.go     calls that fail
//	agent.go      ports of a node, as links in namespaces of VPCs
package alcorfake

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/lab/cloud/httpreply"
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

// Cloud is Alcor's managers. Make it with New, then fill it. It is safe for concurrent use.
type Cloud struct {
	HTTP *httpreply.Front // faults and the log of calls

	clock    clock.Clock
	mu       sync.Mutex // guards all below; nobody waits or talks under it
	networks *networks
	ports    *ports
	api      *api
}

// networks are the VPCs, subnets, security groups and nodes.
type networks struct {
	byID    map[string]Network
	subnets map[string]Subnet
	groups  map[string]bool
	hosts   map[string]Host
}

// ports are the ports, and who is told of their changes.
type ports struct {
	byID     map[string]*Port
	made     int                    // IDs and MAC addresses so far
	watchers map[chan struct{}]bool // of room for one
}

// api is the REST API of the managers.
type api struct {
	options  Options
	clock    clock.Clock
	networks *networks
	ports    *ports
	ignored  []string // names in requests that Alcor does not know
}

// New returns managers without anything in them.
func New(o Options) *Cloud {
	if o.Clock == nil {
		o.Clock = clock.Real{}
	}
	c := &Cloud{
		clock:    o.Clock,
		networks: &networks{byID: map[string]Network{}, subnets: map[string]Subnet{}, groups: map[string]bool{}, hosts: map[string]Host{}},
		ports:    &ports{byID: map[string]*Port{}, watchers: map[chan struct{}]bool{}},
	}
	c.api = &api{options: o, clock: o.Clock, networks: c.networks, ports: c.ports}
	c.HTTP = httpreply.New(httpreply.Service{
		Clock: o.Clock, MaxBody: maxBody, MaxURL: maxURL, TooLong: reply{Status: 400}, // Tomcat: Request header is too large
		TooLarge: func(r *http.Request) reply { return c.api.refused(r, refuse(413, "Maximum upload size exceeded")) },
		Handle: func(r *http.Request, body []byte) (out reply) {
			c.set(func() { out = c.api.route(r, body) })
			return out
		},
		Refuse: func(r *http.Request, f httpreply.Fault) reply {
			if f.Plain {
				return reply{Status: f.Status, Header: map[string]string{"Content-Type": "text/html"}, Body: []byte(f.Message)}
			}
			return c.api.refused(r, refuse(f.Status, f.Message))
		},
	})
	return c
}

// ServeHTTP serves the managers below /project, as Alcor's API gateway does.
func (c *Cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) { c.HTTP.ServeHTTP(w, r) }

// AddNetwork adds a VPC, or replaces the one with its ID, and returns it with what it
// lacked.
func (c *Cloud) AddNetwork(n Network) Network {
	c.set(func() {
		n.ID = cmp.Or(n.ID, c.ports.newID())
		n.Project = cmp.Or(n.Project, firstProject)
		n.MTU = cmp.Or(n.MTU, 1450)
		c.networks.byID[n.ID] = n
	})
	return n
}

// RemoveNetwork removes a VPC. What is in it stays.
func (c *Cloud) RemoveNetwork(id string) { c.set(func() { delete(c.networks.byID, id) }) }

// AddSubnet adds a subnet, or replaces the one with its ID, and returns it with what it
// lacked.
func (c *Cloud) AddSubnet(s Subnet) Subnet {
	c.set(func() {
		s.ID = cmp.Or(s.ID, c.ports.newID())
		c.networks.subnets[s.ID] = s
	})
	return s
}

// AddGroup adds a security group and returns its ID.
func (c *Cloud) AddGroup() (id string) {
	c.set(func() {
		id = c.ports.newID()
		c.networks.groups[id] = true
	})
	return id
}

// AddHost registers a node, or replaces it.
func (c *Cloud) AddHost(name string, h Host) { c.set(func() { c.networks.hosts[name] = h }) }

// RemoveHost takes a node out of the node manager.
func (c *Cloud) RemoveHost(name string) { c.set(func() { delete(c.networks.hosts, name) }) }

// AddPort puts a port there that another client made, as it is told, and returns it with
// what it lacked: ID, MAC address, project.
func (c *Cloud) AddPort(p Port) Port {
	c.set(func() {
		p.ID = cmp.Or(p.ID, c.ports.newID())
		p.MAC = cmp.Or(p.MAC, c.ports.newMAC())
		p.Project = cmp.Or(p.Project, firstProject)
		p.Created = c.clock.Now()
		own := p.copied()
		c.ports.byID[p.ID] = &own
		c.ports.tell()
	})
	return p.copied()
}

// Edit changes a port as another client would. It reports whether there is such a port.
func (c *Cloud) Edit(id string, edit func(*Port)) (ok bool) {
	c.set(func() {
		p := c.ports.byID[id]
		if ok = p != nil; ok {
			edit(p)
			c.ports.tell()
		}
	})
	return ok
}

// Remove deletes a port as another client would.
func (c *Cloud) Remove(id string) { c.set(func() { c.ports.drop(id) }) }

// Ports are all ports as they are, by ID.
func (c *Cloud) Ports() (out []Port) {
	c.set(func() {
		for _, id := range slices.Sorted(maps.Keys(c.ports.byID)) {
			out = append(out, c.ports.byID[id].copied())
		}
	})
	return out
}

// Programmed says that the agent of the host has a port ready, or cannot.
func (c *Cloud) Programmed(port, host string, ok bool) {
	c.set(func() {
		p := c.ports.byID[port]
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
	c.set(func() { out = slices.Clone(c.api.ignored) })
	return out
}

// set runs do with the lock held.
func (c *Cloud) set(do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	do()
}

func (ps *ports) drop(id string) {
	delete(ps.byID, id)
	ps.tell()
}

// watch has something to receive after ports changed, until stop.
func (c *Cloud) watch() (changes <-chan struct{}, stop func()) {
	w := make(chan struct{}, 1)
	w <- struct{}{} // for what there is already
	c.set(func() { c.ports.watchers[w] = true })
	return w, func() { c.set(func() { delete(c.ports.watchers, w) }) }
}

// tell tells the watchers of a change. The lock is held, as in all below.
func (ps *ports) tell() {
	for w := range ps.watchers {
		select {
		case w <- struct{}{}:
		default: // told already
		}
	}
}

// newID is a UUID that nothing had before, and that differs from others in its first
// characters.
func (ps *ports) newID() string {
	ps.made++
	n := uint64(ps.made) * 0x9e3779b97f4a7c15 // spreads neighbours apart (Knuth, multiplicative hashing)
	return fmt.Sprintf("%08x-%04x-4%03x-8%03x-%012x", n>>32, n>>16&0xffff, n>>4&0xfff, n&0xfff, ps.made)
}

// newMAC is a MAC address with Alcor's prefix (macmanager.oui).
func (ps *ports) newMAC() string {
	ps.made++
	return fmt.Sprintf("aa:bb:cc:%02x:%02x:%02x", ps.made>>16&0xff, ps.made>>8&0xff, ps.made&0xff)
}

// macTaken reports whether a port has a MAC address: the MAC manager has one list for all.
func (ps *ports) macTaken(mac string) bool {
	for _, p := range ps.byID {
		if strings.EqualFold(p.MAC, mac) {
			return true
		}
	}
	return false
}
