// Package neutronfake is an OpenStack Networking service (Neutron, ML2) and the identity
// service in front of it (Keystone v3) over HTTP, with the books in memory: as strict as
// the real ones where it answers at all, with their errors word for word. It is for
// tests, the lab and benchmarks. What it knows is from the services' API references and
// the exceptions of Neutron 21.0 (Zed); TestLabAnswersAsNeutron of test/e2e/neutron
// compares it with a real one. It shares no code with what it tests.
//
// Ports, networks and subnets can be read; ports made (one or many), changed and deleted.
// Everything else of a network is put there by Go calls. A call that it does not know is
// answered as Neutron answers one for a resource that it does not have.
//
//	books.go      what there is, and how tests and fabrics change it
//	model.go      networks, subnets, ports
//	addresses.go  which address a port gets
//	ports.go      making and changing ports
//	binding.go    hosts with agents, plugged ports
//	trail.go      listings that trail behind
//	follow.go     for who carries packets: what there is, and when it changed
//	handler.go    one call: faults, routes, the log of calls
//	auth.go       who calls, and what policy lets them do
//	keystone.go   tokens
//	bodies.go     requests, attribute by attribute
//	replies.go    how things read in replies
//	list.go       filters, fields and pages
//	errors.go     refusals
//	faults.go     calls that fail
package neutronfake

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/lab/cloud/httpreply"
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

// Cloud is Neutron, and Keystone in front of it once there is a user. Make it with New, then fill it.
// It is safe for concurrent use.
type Cloud struct {
	HTTP     *httpreply.Front // faults and the log of calls
	Keystone *Keystone

	clock   clock.Clock
	changed signal

	mu       sync.Mutex // guards all below; nobody waits or talks under it
	ids      *ids
	networks *networks
	ports    *ports
	hosts    *hosts
	api      *api
}

// networks are the networks, subnets and security groups.
type networks struct {
	ids     *ids
	byID    map[string]Network
	subnets map[string]Subnet
	groups  map[string]Group
}

// ports are the ports with what is taken by them, and what listings show of them.
type ports struct {
	clock   clock.Clock
	changed signal
	ids     *ids
	byID    map[string]*Port
	ips     map[place]int // how many ports have an address of a network
	macs    map[string]int
	trail   trail
}

// hosts are the compute hosts whose agents are alive.
type hosts struct {
	ports  *ports
	byName map[string]Host
}

// api is Neutron's API v2.0.
type api struct {
	options  Options
	clock    clock.Clock
	keystone *Keystone
	ids      *ids
	networks *networks
	ports    *ports
	hosts    *hosts
	quota    int // ports of a project; below 0: any number
}

// ids makes IDs.
type ids struct{ made int } // so far

// signal has room for one.
type signal chan struct{}

// tell announces a change.
func (s signal) tell() {
	select {
	case s <- struct{}{}:
	default: // announced already
	}
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
	c := &Cloud{clock: o.Clock, changed: make(signal, 1), ids: &ids{}}
	c.Keystone = &Keystone{clock: o.Clock, tokenLife: o.TokenLife, region: o.Region, tokens: map[string]token{}}
	c.networks = &networks{ids: c.ids, byID: map[string]Network{}, subnets: map[string]Subnet{}, groups: map[string]Group{}}
	c.ports = &ports{
		clock: o.Clock, changed: c.changed, ids: c.ids, byID: map[string]*Port{}, ips: map[place]int{}, macs: map[string]int{}, trail: trail{shown: map[string]Port{}},
	}
	c.hosts = &hosts{ports: c.ports, byName: map[string]Host{}}
	c.api = &api{options: o, clock: o.Clock, keystone: c.Keystone, ids: c.ids, networks: c.networks, ports: c.ports, hosts: c.hosts, quota: -1}
	c.HTTP = httpreply.New(httpreply.Service{
		Clock: o.Clock, MaxBody: o.MaxBody, MaxURL: maxURL, TooLong: textReply(414, "Request-URI Too Long"),
		TooLarge: func(*http.Request) reply { return textReply(413, "Request is too large.") },
		Handle: func(r *http.Request, body []byte) (out reply) {
			c.set(func() { out = c.api.route(r, body) })
			return out
		},
		Refuse: func(_ *http.Request, f httpreply.Fault) reply {
			if f.Type == "" { // as proxies answer
				return textReply(f.Status, f.Message)
			}
			return refuse(f.Status, f.Type, "%s", f.Message).reply()
		},
	})
	return c
}

// ServeHTTP serves Keystone below /v3 and Neutron below /v2.0.
func (c *Cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) { c.HTTP.ServeHTTP(w, r) }

// AddNetwork adds a network, or replaces the one with its ID, and returns it with what it
// lacked.
func (c *Cloud) AddNetwork(n Network) Network {
	c.set(func() {
		n.ID = cmp.Or(n.ID, c.ids.newID())
		n.Project = cmp.Or(n.Project, firstProject)
		n.MTU = cmp.Or(n.MTU, 1442)
		c.networks.byID[n.ID] = n
		c.changed.tell()
	})
	return n
}

// RemoveNetwork removes a network. What is in it stays.
func (c *Cloud) RemoveNetwork(id string) {
	c.set(func() { delete(c.networks.byID, id); c.changed.tell() })
}

// AddSubnet adds a subnet, or replaces the one with its ID, and returns it with what it
// lacked.
func (c *Cloud) AddSubnet(s Subnet) Subnet {
	c.set(func() {
		s.ID = cmp.Or(s.ID, c.ids.newID())
		c.networks.subnets[s.ID] = s
		c.changed.tell()
	})
	return s
}

// AddGroup adds a security group, or replaces the one with its ID, and returns it with what
// it lacked.
func (c *Cloud) AddGroup(g Group) Group {
	c.set(func() {
		g.ID = cmp.Or(g.ID, c.ids.newID())
		g.Project = cmp.Or(g.Project, firstProject)
		c.networks.groups[g.ID] = g
		c.changed.tell()
	})
	return g
}

// SetQuota says how many ports a project may have; below 0: any number.
func (c *Cloud) SetQuota(ports int) { c.set(func() { c.api.quota = ports }) }

// AddPort puts a port there that another client made, as it is told, and returns it with
// what it lacked: ID, MAC address, project, status.
func (c *Cloud) AddPort(p Port) Port {
	c.set(func() {
		p.ID = cmp.Or(p.ID, c.ids.newID())
		p.MAC = cmp.Or(p.MAC, c.ids.newMAC())
		p.Project = cmp.Or(p.Project, firstProject)
		p.Status = cmp.Or(p.Status, "DOWN")
		p.VIF.Type = cmp.Or(p.VIF.Type, "unbound")
		p.Created = c.clock.Now()
		c.ports.enter(&p)
	})
	return p.copied()
}

// Edit changes a port as another client would, and so its revision. It reports whether
// there is such a port.
func (c *Cloud) Edit(id string, edit func(*Port)) (ok bool) {
	c.set(func() {
		p := c.ports.byID[id]
		if ok = p != nil; ok {
			c.ports.index(p, -1)
			c.ports.change(p, func() { edit(p) })
			c.ports.index(p, 1)
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

// Books are what there is at one moment, in the order of IDs.
type Books struct {
	Networks []Network
	Subnets  []Subnet
	Groups   []Group
	Ports    []Port
}

// Snapshot is what there is now.
func (c *Cloud) Snapshot() (b Books) {
	b.Ports = c.Ports()
	c.set(func() {
		b.Networks, b.Subnets, b.Groups = slices.Collect(maps.Values(c.networks.byID)), slices.Collect(maps.Values(c.networks.subnets)), slices.Collect(maps.Values(c.networks.groups))
	})
	slices.SortFunc(b.Networks, func(x, y Network) int { return cmp.Compare(x.ID, y.ID) })
	slices.SortFunc(b.Subnets, func(x, y Subnet) int { return cmp.Compare(x.ID, y.ID) })
	slices.SortFunc(b.Groups, func(x, y Group) int { return cmp.Compare(x.ID, y.ID) })
	return b
}

// Changes is for who carries packets, of whom there is one: it has something to receive
// after networks, subnets, groups or ports were added, changed or removed since it was
// received from last.
func (c *Cloud) Changes() <-chan struct{} { return c.changed }

// set runs do with the lock held.
func (c *Cloud) set(do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	do()
}

// enter adds a port. The lock is held, as in all below.
func (ps *ports) enter(p *Port) {
	ps.byID[p.ID] = p
	ps.index(p, 1)
	ps.change(p, func() {})
}

// place is an address of a network, and onNetwork a MAC address.
type place struct {
	network string
	ip      netip.Addr
}

func onNetwork(network, mac string) string { return network + " " + strings.ToLower(mac) }

// index counts a port among those that have its addresses, or no longer (by -1).
func (ps *ports) index(p *Port, by int) {
	for _, f := range p.FixedIPs {
		if ps.ips[place{p.Network, f.IP}] += by; ps.ips[place{p.Network, f.IP}] == 0 {
			delete(ps.ips, place{p.Network, f.IP})
		}
	}
	if ps.macs[onNetwork(p.Network, p.MAC)] += by; ps.macs[onNetwork(p.Network, p.MAC)] == 0 {
		delete(ps.macs, onNetwork(p.Network, p.MAC))
	}
}

// change changes a port, which has another revision from then on.
func (ps *ports) change(p *Port, edit func()) {
	edit()
	p.Revision++
	p.Updated = ps.clock.Now()
	now := p.copied()
	ps.trail.add(ps.clock.Now(), p.ID, &now)
	ps.changed.tell()
}

func (ps *ports) drop(id string) {
	if p, ok := ps.byID[id]; ok {
		ps.index(p, -1)
		delete(ps.byID, id)
		ps.trail.add(ps.clock.Now(), id, nil)
		ps.changed.tell()
	}
}

// newID is a UUID that nothing had before, and that differs from others in its first
// characters, as Neutron's do.
func (i *ids) newID() string {
	i.made++
	n := uint64(i.made) * 0x9e3779b97f4a7c15 // spreads neighbours apart (Knuth, multiplicative hashing)
	return fmt.Sprintf("%08x-%04x-4%03x-8%03x-%012x", n>>32, n>>16&0xffff, n>>4&0xfff, n&0xfff, i.made)
}

// newMAC is a MAC address with Neutron's prefix (base_mac).
func (i *ids) newMAC() string {
	i.made++
	return fmt.Sprintf("fa:16:3e:%02x:%02x:%02x", i.made>>16&0xff, i.made>>8&0xff, i.made&0xff)
}

func (p *Port) copied() Port {
	out := *p
	out.FixedIPs, out.Groups, out.VIF.Details = slices.Clone(p.FixedIPs), slices.Clone(p.Groups), maps.Clone(p.VIF.Details)
	out.Tags = slices.Clone(p.Tags)
	return out
}

// trail is what listings show, which may be older than what there is.
type trail struct {
	shown map[string]Port
	later []trailed // oldest first
}

// trailed is a port as it was from a moment on; nil once it was gone.
type trailed struct {
	at   time.Time
	id   string
	port *Port
}

func (t *trail) add(at time.Time, id string, p *Port) { t.later = append(t.later, trailed{at, id, p}) }

// at is what a listing shows that is as old as a moment. Moments do not go back.
func (t *trail) at(moment time.Time) map[string]Port {
	n := 0
	for _, l := range t.later {
		if l.at.After(moment) {
			break
		}
		if n++; l.port == nil {
			delete(t.shown, l.id)
		} else {
			t.shown[l.id] = *l.port
		}
	}
	t.later = t.later[n:]
	return t.shown
}
