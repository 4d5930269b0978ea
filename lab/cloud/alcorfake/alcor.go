// Package alcorfake is an in-memory Alcor (futurewei-cloud/alcor) over HTTP for tests and the lab: the
// port manager, the parts of the VPC and subnet managers that Berth uses, and the node agent, which puts
// ports into network namespaces of VPCs. It was written without access to a running Alcor and follows
// Alcor's entities, controllers and exceptions, including their bugs. It shares no code with Berth's
// client.
//
// Clients can list, create (one or in bulk), change and delete ports, and read VPCs and subnets.
// Everything else is set by Go calls. Unknown fields of requests are ignored, as by Spring's Jackson;
// Ignored returns their names.
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

// Options configure the managers.
type Options struct {
	Clock clock.Clock // nil: the machine's
	// Lower writes statuses in lower case, as old releases do.
	Lower bool
	// Networks names the list of VPCs "networks" instead of "vpcs", as some releases do.
	Networks bool
	// Unfiltered ignores query parameters, as managers do whose database records lack the fields.
	Unfiltered bool
}

// firstProject is the default project.
const firstProject = "3dda2801-d675-4688-a63f-dcda8d327f50"

// Cloud is Alcor's managers. It starts empty and is safe for concurrent use.
type Cloud struct {
	HTTP *httpreply.Front // faults and the call log

	clock    clock.Clock
	mu       sync.Mutex // guards all below; never held during I/O
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

// ports are the ports and the subscriptions to their changes.
type ports struct {
	byID     map[string]*Port
	made     int                    // number of IDs and MAC addresses issued
	watchers map[chan struct{}]bool // capacity 1
}

// api is the REST API of the managers.
type api struct {
	options  Options
	clock    clock.Clock
	networks *networks
	ports    *ports
	ignored  []string // unknown names in requests
}

// New returns managers without any objects.
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

// AddNetwork adds or replaces a VPC, and returns it with defaults for missing fields.
func (c *Cloud) AddNetwork(n Network) Network {
	c.set(func() {
		n.ID = cmp.Or(n.ID, c.ports.newID())
		n.Project = cmp.Or(n.Project, firstProject)
		n.MTU = cmp.Or(n.MTU, 1450)
		c.networks.byID[n.ID] = n
	})
	return n
}

// RemoveNetwork removes a VPC. Its subnets and ports stay.
func (c *Cloud) RemoveNetwork(id string) { c.set(func() { delete(c.networks.byID, id) }) }

// AddSubnet adds or replaces a subnet, and returns it with its ID.
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

// AddHost registers or replaces a node.
func (c *Cloud) AddHost(name string, h Host) { c.set(func() { c.networks.hosts[name] = h }) }

// RemoveHost removes a node from the node manager.
func (c *Cloud) RemoveHost(name string) { c.set(func() { delete(c.networks.hosts, name) }) }

// AddPort adds a port on behalf of another client, and returns it with defaults for a missing ID, MAC
// address or project.
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

// Edit changes a port as another client would, and reports whether the port exists.
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

// Ports lists all ports, ordered by ID.
func (c *Cloud) Ports() (out []Port) {
	c.set(func() {
		for _, id := range slices.Sorted(maps.Keys(c.ports.byID)) {
			out = append(out, c.ports.byID[id].copied())
		}
	})
	return out
}

// Programmed records that the agent of the host has programmed a port, or failed to.
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

// Ignored returns the unknown fields of requests, such as "port.subnett".
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

// watch returns a channel that receives after ports change, until stop is called.
func (c *Cloud) watch() (changes <-chan struct{}, stop func()) {
	w := make(chan struct{}, 1)
	w <- struct{}{} // deliver the current state
	c.set(func() { c.ports.watchers[w] = true })
	return w, func() { c.set(func() { delete(c.ports.watchers, w) }) }
}

// tell notifies the watchers of a change. The caller must hold the lock, as for all methods below.
func (ps *ports) tell() {
	for w := range ps.watchers {
		select {
		case w <- struct{}{}:
		default: // notification already pending
		}
	}
}

// newID returns a new UUID whose first characters are unique.
func (ps *ports) newID() string {
	ps.made++
	n := uint64(ps.made) * 0x9e3779b97f4a7c15 // Knuth's multiplicative hash: consecutive numbers differ in their first characters
	return fmt.Sprintf("%08x-%04x-4%03x-8%03x-%012x", n>>32, n>>16&0xffff, n>>4&0xfff, n&0xfff, ps.made)
}

// newMAC returns a new MAC address with Alcor's prefix (macmanager.oui).
func (ps *ports) newMAC() string {
	ps.made++
	return fmt.Sprintf("aa:bb:cc:%02x:%02x:%02x", ps.made>>16&0xff, ps.made>>8&0xff, ps.made&0xff)
}

// macTaken reports whether a port of any VPC has a MAC address: the MAC manager has one list for all VPCs.
func (ps *ports) macTaken(mac string) bool {
	for _, p := range ps.byID {
		if strings.EqualFold(p.MAC, mac) {
			return true
		}
	}
	return false
}
