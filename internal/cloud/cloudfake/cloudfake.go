// Package cloudfake is a cloud.API in memory: the books of a small VPC with
// EC2's rules for addresses, attachments and client tokens, for tests that need
// no HTTP. It counts calls, fails them on demand, delays them by its clock, and
// lets listings trail the truth.
package cloudfake

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/cloud"
)

// Cloud is the VPC. Make it with New, then add subnets and instances.
type Cloud struct {
	clock clock.Clock

	mu        sync.Mutex // guards all below
	lag       time.Duration
	attach    time.Duration // how long attaching and detaching take
	latency   map[string]time.Duration
	types     map[string]cloud.Limits
	instances map[string]cloud.Instance // without ENIs
	subnets   map[string]*subnet
	groups    map[string]map[string]string // tags of the security groups
	routes    []cloud.RouteTable           // besides the main one, which has no subnet by name
	enis      map[string]*eni
	tokens    map[string]token
	past      []past // what listings show while they trail
	calls     []Call
	faults    []*Fault
	seq       int
}

type subnet struct {
	cloud.Subnet
	next       netip.Addr
	used       map[netip.Addr]bool
	fragmented bool
}

type eni struct {
	cloud.ENI
	settled time.Time // when attaching or detaching is over
}

type token struct {
	request string
	eni     string
}

type past struct {
	at   time.Time
	enis []cloud.ENI
}

// Call is one call that was made.
type Call struct {
	Op  string // the method's name
	ENI string
	N   int // addresses or prefixes asked for
	At  time.Time
	Err error
}

// Fault makes calls fail. It is spent after Times calls, 0 meaning never.
type Fault struct {
	Op    string // the method's name; empty: any
	ENI   string // the one that the call names; empty: any
	Times int
	Err   error
	// After lets the call take effect before it fails: a lost reply.
	After bool
	hits  int
}

// New returns an empty VPC, "vpc-1", with the security group "sg-1", that knows the instance types t3.small,
// m5.xlarge, c5.large and m5.4xlarge.
func New(c clock.Clock) *Cloud {
	return &Cloud{
		clock: c, latency: map[string]time.Duration{}, instances: map[string]cloud.Instance{},
		subnets: map[string]*subnet{}, groups: map[string]map[string]string{"sg-1": {}}, enis: map[string]*eni{}, tokens: map[string]token{},
		types: map[string]cloud.Limits{
			"t3.small":   {MaxENIs: 3, IPv4PerENI: 4, IPv6PerENI: 4, Prefixes: true},
			"c5.large":   {MaxENIs: 3, IPv4PerENI: 10, IPv6PerENI: 10, Prefixes: true},
			"m5.xlarge":  {MaxENIs: 4, IPv4PerENI: 15, IPv6PerENI: 15, Prefixes: true},
			"m5.4xlarge": {MaxENIs: 8, IPv4PerENI: 30, IPv6PerENI: 30, Prefixes: true},
		},
	}
}

// SetLag makes listings show what was true d ago.
func (c *Cloud) SetLag(d time.Duration) { c.mu.Lock(); defer c.mu.Unlock(); c.lag = d }

// SetAttachTime sets how long attaching and detaching take after the call.
func (c *Cloud) SetAttachTime(d time.Duration) { c.mu.Lock(); defer c.mu.Unlock(); c.attach = d }

// SetLatency delays each call of an operation; an empty one means all others.
func (c *Cloud) SetLatency(op string, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.latency[op] = d
}

// SetFragmented tells whether a subnet has no free prefix left.
func (c *Cloud) SetFragmented(id string, on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subnets[id].fragmented = on
}

// Inject adds a fault.
func (c *Cloud) Inject(f Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, &f)
}

// ClearFaults ends all faults.
func (c *Cloud) ClearFaults() { c.mu.Lock(); defer c.mu.Unlock(); c.faults = nil }

// AddSubnet adds a subnet. EC2 reserves its first four addresses and the last.
func (c *Cloud) AddSubnet(id, zone, cidr string, tags map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := netip.MustParsePrefix(cidr)
	s := &subnet{Subnet: cloud.Subnet{ID: id, VPCID: "vpc-1", Zone: zone, CIDR: p, Tags: tags}, used: map[netip.Addr]bool{}}
	s.next = p.Addr()
	for range 4 {
		s.next = s.next.Next()
	}
	c.subnets[id] = s
}

// AddRouteTable adds a route table with some subnets; all others have the main one.
func (c *Cloud) AddRouteTable(id string, subnets ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.routes = append(c.routes, cloud.RouteTable{ID: id, Subnets: subnets})
}

// RemoveSubnet deletes a subnet, as EC2 lets one that is empty.
func (c *Cloud) RemoveSubnet(id string) { c.mu.Lock(); defer c.mu.Unlock(); delete(c.subnets, id) }

// AddSecurityGroup adds a security group.
func (c *Cloud) AddSecurityGroup(id string, tags map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.groups[id] = maps.Clone(tags)
}

// AddInstance starts an instance with its primary ENI.
func (c *Cloud) AddInstance(id, itype, subnetID string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.subnets[subnetID]
	addr := s.take()
	c.instances[id] = cloud.Instance{ID: id, Type: itype, State: "running", Zone: s.Zone, VPCID: "vpc-1", SubnetID: subnetID, Primary: addr}
	e := c.newENI(s, addr)
	e.Groups = []string{"sg-1"}
	e.Status = "in-use"
	e.Attachment = &cloud.Attachment{ID: "attach-" + e.ID, InstanceID: id, Status: "attached", DeleteOnTermination: true}
	c.remember()
}

// AddENI attaches an ENI that Berth did not make just now, with tags and a type,
// and returns its ID. With Berth's tag of an instance it has Berth's description of that.
func (c *Cloud) AddENI(instance string, index int, kind cloud.InterfaceType, tags map[string]string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.subnets[c.instances[instance].SubnetID]
	e := c.newENI(s, s.take())
	e.Type, e.Tags, e.Status = kind, tags, "in-use"
	if of := tags["berth.dev/instance-id"]; of != "" {
		e.Description = "Berth (" + of + ")"
	}
	e.Attachment = &cloud.Attachment{ID: "attach-" + e.ID, InstanceID: instance, DeviceIndex: index, Status: "attached"}
	c.remember()
	return e.ID
}

// Terminate ends an instance; its ENIs go, or are left detached, by DeleteOnTermination.
func (c *Cloud) Terminate(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.enis {
		if e.Attachment == nil || e.Attachment.InstanceID != id {
			continue
		}
		if e.Attachment.DeleteOnTermination {
			c.remove(e)
		} else {
			e.Attachment, e.Status = nil, "available"
		}
	}
	delete(c.instances, id)
	c.remember()
}

// Steal takes an address off an ENI behind everyone's back.
func (c *Cloud) Steal(id string, addr netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.enis[id]
	e.Addresses = slices.DeleteFunc(e.Addresses, func(a netip.Addr) bool { return a == addr })
	c.remember()
}

// Calls lists the calls so far.
func (c *Cloud) Calls() []Call { c.mu.Lock(); defer c.mu.Unlock(); return slices.Clone(c.calls) }

// ResetCalls forgets the calls so far.
func (c *Cloud) ResetCalls() { c.mu.Lock(); defer c.mu.Unlock(); c.calls = nil }

// Count counts the calls of the named operations so far.
func (c *Cloud) Count(ops ...string) int {
	n := 0
	for _, call := range c.Calls() {
		if slices.Contains(ops, call.Op) {
			n++
		}
	}
	return n
}

// Truth lists all ENIs as they are, without lag, by ID.
func (c *Cloud) Truth() []cloud.ENI {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.snapshot()
}

func (c *Cloud) newENI(s *subnet, addr netip.Addr) *eni {
	c.seq++
	e := &eni{ENI: cloud.ENI{
		ID: fmt.Sprintf("eni-%04d", c.seq), MAC: net.HardwareAddr{2, 0, 0, 0, byte(c.seq >> 8), byte(c.seq)},
		Type: cloud.InterfaceOrdinary, Status: "available", VPCID: "vpc-1", SubnetID: s.ID, Zone: s.Zone, Primary: addr,
	}}
	c.enis[e.ID] = e
	return e
}

// settle ends attachments and detachments whose time has come.
func (c *Cloud) settle() {
	now := c.clock.Now()
	for _, id := range slices.Sorted(maps.Keys(c.enis)) {
		e := c.enis[id]
		if e.Attachment == nil || e.settled.After(now) {
			continue
		}
		switch e.Attachment.Status {
		case "attaching":
			e.Attachment = &cloud.Attachment{ID: e.Attachment.ID, InstanceID: e.Attachment.InstanceID, DeviceIndex: e.Attachment.DeviceIndex,
				Status: "attached", DeleteOnTermination: e.Attachment.DeleteOnTermination}
		case "detaching":
			e.Attachment, e.Status = nil, "available"
		}
	}
}

// remember keeps what listings show until lag has passed.
func (c *Cloud) remember() {
	now := c.clock.Now()
	c.past = append(c.past, past{at: now, enis: c.snapshot()})
	for len(c.past) > 1 && !c.past[1].at.After(now.Add(-c.lag)) {
		c.past = c.past[1:]
	}
}

// listing is what a describe call shows now.
func (c *Cloud) listing() []cloud.ENI {
	c.settle()
	if c.lag == 0 || len(c.past) == 0 {
		return c.snapshot()
	}
	seen := c.past[0]
	for _, p := range c.past {
		if !p.at.After(c.clock.Now().Add(-c.lag)) {
			seen = p
		}
	}
	if seen.at.Equal(c.past[len(c.past)-1].at) {
		return c.snapshot()
	}
	return cloneAll(seen.enis)
}

func (c *Cloud) snapshot() []cloud.ENI {
	c.settle()
	var out []cloud.ENI
	for _, id := range slices.Sorted(maps.Keys(c.enis)) {
		out = append(out, c.enis[id].ENI)
	}
	return cloneAll(out)
}

func cloneAll(list []cloud.ENI) []cloud.ENI {
	out := make([]cloud.ENI, len(list))
	for i, e := range list {
		out[i] = clone(e)
	}
	return out
}

func clone(e cloud.ENI) cloud.ENI {
	e.Groups, e.Tags = slices.Clone(e.Groups), maps.Clone(e.Tags)
	e.Addresses, e.Prefixes = slices.Clone(e.Addresses), slices.Clone(e.Prefixes)
	e.IPv6, e.IPv6Prefixes = slices.Clone(e.IPv6), slices.Clone(e.IPv6Prefixes)
	if e.Attachment != nil {
		a := *e.Attachment
		e.Attachment = &a
	}
	return e
}

// take finds a free address: the next never used one, so that a reuse, when it
// comes, is the longest ago; zero when the subnet is full.
func (s *subnet) take() netip.Addr {
	for range 2 {
		for ; s.CIDR.Contains(s.next.Next()); s.next = s.next.Next() { // the last is reserved
			if !s.used[s.next] {
				a := s.next
				s.used[a] = true
				s.next = s.next.Next()
				return a
			}
		}
		s.next = s.first()
	}
	return netip.Addr{}
}

func (s *subnet) first() netip.Addr {
	a := s.CIDR.Addr()
	for range 4 {
		a = a.Next()
	}
	return a
}

// takePrefix finds a free aligned /28, the highest first, clear of reserved addresses.
func (s *subnet) takePrefix() (netip.Prefix, bool) {
	if s.fragmented {
		return netip.Prefix{}, false
	}
	var found netip.Prefix
	for p := netip.PrefixFrom(s.CIDR.Addr(), 28); s.CIDR.Contains(p.Addr()); p = netip.PrefixFrom(after(p), 28) {
		if p.Addr() != s.CIDR.Addr() && s.CIDR.Contains(after(p)) && s.clear(p) {
			found = p
		}
	}
	if found.IsValid() {
		s.mark(found, true)
	}
	return found, found.IsValid()
}

func after(p netip.Prefix) netip.Addr {
	a := p.Addr()
	for range 16 {
		a = a.Next()
	}
	return a
}

func (s *subnet) clear(p netip.Prefix) bool {
	for a := p.Addr(); p.Contains(a); a = a.Next() {
		if s.used[a] {
			return false
		}
	}
	return true
}

func (s *subnet) mark(p netip.Prefix, on bool) {
	for a := p.Addr(); p.Contains(a); a = a.Next() {
		if on {
			s.used[a] = true
		} else {
			delete(s.used, a)
		}
	}
}

func (s *subnet) free() int { return 1<<(32-s.CIDR.Bits()) - 5 - len(s.used) }
