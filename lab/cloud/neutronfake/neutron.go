// Package neutronfake is an OpenStack Networking service (Neutron, ML2) and the identity service in front
// of it (Keystone v3) over HTTP, with their state in memory. It is as strict as the real services in what
// it supports, with their exact errors. It is for tests, the lab and benchmarks. It follows the API
// references and the exceptions of Neutron 21.0 (Zed); TestProviderWithNeutron of test/e2e/neutron
// compares it with a real one. It shares no code with what it tests.
//
// Ports, networks and subnets can be read; ports can be made (one or many), changed and deleted.
// Everything else is set by Go calls. The reply to an unknown call is Neutron's for an unknown resource.
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

// Options configure the services. The zero value is Neutron with its defaults.
type Options struct {
	Clock clock.Clock // the machine's when nil
	// Lag is how far listings of ports lag behind. Single ports are never old.
	Lag time.Duration
	// TokenLife is how long a token is valid; 0: an hour (Keystone's default).
	TokenLife time.Duration
	// MaxPage is the maximum page size (pagination_max_limit); 0: no maximum, and pages only on
	// request.
	MaxPage int
	// MaxBody is the maximum size of a request in bytes; 0: 114,688 (oslo.middleware,
	// max_request_body_size).
	MaxBody int64
	// Region is the region of the catalog; empty: RegionOne.
	Region string
}

// firstProject is the default project.
const firstProject = "5f1c0a0e9d0b4e0f8d8f2c7d6b5a4930"

// Cloud is Neutron, and Keystone in front of it once there is a user. Make it with New, then fill it.
// It is safe for concurrent use.
type Cloud struct {
	HTTP     *httpreply.Front // faults and the log of calls
	Keystone *Keystone

	clock   clock.Clock
	changed signal

	mu       sync.Mutex // guards all below; never held during I/O
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

// ports are the ports with the addresses that they take, and the state that listings show.
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

// tell signals a change.
func (s signal) tell() {
	select {
	case s <- struct{}{}:
	default: // signalled already
	}
}

// New returns empty services. Without a user there is no Keystone in front of Neutron (auth_strategy
// noauth), and requests name the project.
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

// AddNetwork adds a network, or replaces the one with its ID, and returns it with defaults for missing
// fields.
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

// RemoveNetwork removes a network. Its subnets and ports stay.
func (c *Cloud) RemoveNetwork(id string) {
	c.set(func() { delete(c.networks.byID, id); c.changed.tell() })
}

// AddSubnet adds a subnet, or replaces the one with its ID, and returns it with its ID.
func (c *Cloud) AddSubnet(s Subnet) Subnet {
	c.set(func() {
		s.ID = cmp.Or(s.ID, c.ids.newID())
		c.networks.subnets[s.ID] = s
		c.changed.tell()
	})
	return s
}

// AddGroup adds a security group, or replaces the one with its ID, and returns it with defaults for
// missing fields.
func (c *Cloud) AddGroup(g Group) Group {
	c.set(func() {
		g.ID = cmp.Or(g.ID, c.ids.newID())
		g.Project = cmp.Or(g.Project, firstProject)
		c.networks.groups[g.ID] = g
		c.changed.tell()
	})
	return g
}

// SetQuota sets the maximum number of ports of a project; below 0: none.
func (c *Cloud) SetQuota(ports int) { c.set(func() { c.api.quota = ports }) }

// AddPort adds a port of another client, and returns it with defaults for a missing ID, MAC address,
// project or status.
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

// Edit changes a port, and so its revision, as another client would. It reports whether the port
// exists.
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

// Ports lists all ports, ordered by ID.
func (c *Cloud) Ports() (out []Port) {
	c.set(func() {
		for _, id := range slices.Sorted(maps.Keys(c.ports.byID)) {
			out = append(out, c.ports.byID[id].copied())
		}
	})
	return out
}

// Snapshot are the networks, subnets, groups and ports at one moment, each ordered by ID.
type Snapshot struct {
	Networks []Network
	Subnets  []Subnet
	Groups   []Group
	Ports    []Port
}

// Snapshot returns the current state.
func (c *Cloud) Snapshot() (b Snapshot) {
	b.Ports = c.Ports()
	c.set(func() {
		b.Networks, b.Subnets, b.Groups = slices.Collect(maps.Values(c.networks.byID)), slices.Collect(maps.Values(c.networks.subnets)), slices.Collect(maps.Values(c.networks.groups))
	})
	slices.SortFunc(b.Networks, func(x, y Network) int { return cmp.Compare(x.ID, y.ID) })
	slices.SortFunc(b.Subnets, func(x, y Subnet) int { return cmp.Compare(x.ID, y.ID) })
	slices.SortFunc(b.Groups, func(x, y Group) int { return cmp.Compare(x.ID, y.ID) })
	return b
}

// Changes returns a channel that receives after networks, subnets, groups or ports change. It has one
// receiver, the fabric.
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

// place is an address in a network.
type place struct {
	network string
	ip      netip.Addr
}

func onNetwork(network, mac string) string { return network + " " + strings.ToLower(mac) }

// index adds the addresses of a port to the index, or removes them if by is -1.
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

// change changes a port and its revision.
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

// newID returns a new UUID that differs from others in its first characters, like Neutron's.
func (i *ids) newID() string {
	i.made++
	n := uint64(i.made) * 0x9e3779b97f4a7c15 // spreads neighbours apart (Knuth, multiplicative hashing)
	return fmt.Sprintf("%08x-%04x-4%03x-8%03x-%012x", n>>32, n>>16&0xffff, n>>4&0xfff, n&0xfff, i.made)
}

// newMAC returns a new MAC address with Neutron's prefix (base_mac).
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

// trail is the state that listings show, which may lag behind.
type trail struct {
	shown map[string]Port
	later []trailed // oldest first
}

// trailed is a port from a moment on; nil after its deletion.
type trailed struct {
	at   time.Time
	id   string
	port *Port
}

func (t *trail) add(at time.Time, id string, p *Port) { t.later = append(t.later, trailed{at, id, p}) }

// at returns the state at a moment. Moments must not decrease.
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
