// Package cloudsim is a cloud.API in memory for very many nodes: the books of
// one VPC, in which no call costs more than what it changes or returns, with
// what keeps a client of EC2 waiting: a delay for every call, and token buckets
// that the client is not told of. It measures what CPU time it takes itself, so
// that a benchmark can leave that out. Package cloudfake is the one for faults,
// lagging listings and single nodes.
package cloudsim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/cloud/limits"
	"github.com/berthnet/berth/internal/cloud/pace"
)

// VPC is the ID of the one VPC, Group that of its first security group.
const (
	VPC   = "vpc-1"
	Group = "sg-1"
)

// Bucket is a token bucket: full at first, one token a call that is not refused.
type Bucket struct {
	Rate float64 // tokens a second
	Size float64
}

// Options say how the cloud behaves. The zero value answers at once and
// refuses nothing.
type Options struct {
	Clock      clock.Clock   // the machine's when nil
	Latency    time.Duration // from a call to its effect and reply
	AttachTime time.Duration // from the reply to the end of attaching or detaching
	// Shared is a bucket for the calls of all actions.
	Shared *Bucket
	// Buckets are those of single actions, by EC2's name; "Describe" stands for
	// every action whose name begins so, and "" for all others not named.
	Buckets map[string]Bucket
	// Refused is the share of calls that are refused for their rate whatever it
	// is, at random, but in the same places for a Seed.
	Refused float64
	Seed    uint64
	// PageSize is the most ENIs in one listing; 1000 when 0.
	PageSize int
}

// Cloud is the VPC. Make it with New, then add subnets and instances. It is
// safe for concurrent use.
type Cloud struct {
	options Options
	clock   clock.Clock

	mu        sync.Mutex // guards all below
	shared    *bucket
	buckets   map[string]*bucket
	stats     map[string]Stats
	busy      time.Duration // CPU time of the work done
	types     map[string]cloud.Limits
	instances map[string]*instance
	subnets   map[string]*subnet
	groups    map[string]map[string]string // tags of security groups
	enis      map[string]*eni
	attached  map[string]*eni // by attachment ID
	detached  map[string]*eni // by ID
	order     []*eni          // by seq; deleted ones until there are too many
	settling  []change        // attachments and detachments that are not over, the next one first
	tokens    map[string]token
	seq       int
	dice      *rand.Rand // for Options.Refused
}

type instance struct {
	cloud.Instance // without ENIs
	enis           []*eni
}

type eni struct {
	cloud.ENI
	seq     int
	deleted bool
	settled time.Time // when attaching or detaching is over
}

// change is the end of an attachment or detachment; it counts if the ENI still
// says the same time.
type change struct {
	at time.Time
	*eni
}

type token struct {
	request string
	eni     string
}

var (
	_ cloud.API  = (*Cloud)(nil)
	_ pace.Calls = (*Cloud)(nil)
)

// New returns a VPC without subnets.
func New(o Options) *Cloud {
	if o.Clock == nil {
		o.Clock = clock.Real{}
	}
	if o.PageSize <= 0 {
		o.PageSize = 1000
	}
	c := &Cloud{
		options: o, clock: o.Clock, buckets: map[string]*bucket{}, stats: map[string]Stats{}, types: map[string]cloud.Limits{},
		instances: map[string]*instance{}, subnets: map[string]*subnet{}, groups: map[string]map[string]string{Group: {}},
		enis: map[string]*eni{}, attached: map[string]*eni{}, detached: map[string]*eni{}, tokens: map[string]token{},
		dice: rand.New(rand.NewPCG(o.Seed, 2)),
	}
	c.shared = newBucket(o.Shared, o.Clock.Now())
	return c
}

// AddSubnet adds a subnet with free addresses at most, or as many as its CIDR
// has when free is 0. EC2 reserves the first four addresses and the last.
func (c *Cloud) AddSubnet(id, zone, cidr string, free int, tags map[string]string) error {
	p, err := netip.ParsePrefix(cidr)
	if err != nil || !p.Addr().Is4() || p.Bits() > 28 {
		return fmt.Errorf("subnet %s: CIDR %q: expected an IPv4 block of /28 or larger", id, cidr)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subnets[id] = newSubnet(cloud.Subnet{ID: id, VPCID: VPC, Zone: zone, CIDR: p.Masked(), Tags: maps.Clone(tags)}, free)
	return nil
}

// AddSecurityGroup adds a security group.
func (c *Cloud) AddSecurityGroup(id string, tags map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.groups[id] = maps.Clone(tags)
}

// AddInstance starts an instance with its primary ENI. It counts as no call.
func (c *Cloud) AddInstance(id, instanceType, subnetID string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, ok := c.subnets[subnetID]
	if !ok {
		return fmt.Errorf("instance %s: no subnet %q", id, subnetID)
	}
	if _, ok := c.limitsOf(instanceType); !ok {
		return fmt.Errorf("instance %s: no instance type %q", id, instanceType)
	}
	if s.free() < 1 {
		return fmt.Errorf("instance %s: subnet %s is full", id, subnetID)
	}
	e := c.newENI(s)
	e.Groups, e.Status = []string{Group}, "in-use"
	e.Attachment = &cloud.Attachment{ID: "attach-" + e.ID, InstanceID: id, Status: "attached", DeleteOnTermination: true}
	c.attached[e.Attachment.ID] = e
	c.instances[id] = &instance{
		Instance: cloud.Instance{ID: id, Type: instanceType, State: "running", Zone: s.Zone, VPCID: VPC, SubnetID: subnetID, Primary: e.Primary},
		enis:     []*eni{e},
	}
	return nil
}

// Terminate ends an instance. Its ENIs go, or are left detached, by DeleteOnTermination.
func (c *Cloud) Terminate(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	in := c.instances[id]
	if in == nil {
		return
	}
	delete(c.instances, id)
	for _, e := range in.enis {
		delete(c.attached, e.Attachment.ID)
		keep := !e.Attachment.DeleteOnTermination
		e.Attachment, e.Status, e.settled = nil, "available", time.Time{}
		if keep {
			c.detached[e.ID] = e
		} else {
			c.remove(e)
		}
	}
}

// Truth lists all ENIs in the order of creation. It counts as no call.
func (c *Cloud) Truth() []cloud.ENI {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
	out := make([]cloud.ENI, 0, len(c.enis))
	for _, e := range c.order {
		if !e.deleted {
			out = append(out, clone(e))
		}
	}
	return out
}

// limitsOf is the table's entry for a type. c.mu is held.
func (c *Cloud) limitsOf(instanceType string) (cloud.Limits, bool) {
	if l, ok := c.types[instanceType]; ok {
		return l, true
	}
	l, ok := limits.Lookup(instanceType)
	if ok {
		c.types[instanceType] = cloud.Limits(l)
	}
	return cloud.Limits(l), ok
}

// newENI makes a detached ENI with an address of a subnet that has one. c.mu is held.
func (c *Cloud) newENI(s *subnet) *eni {
	c.seq++
	addr, _ := s.take()
	e := &eni{seq: c.seq, ENI: cloud.ENI{
		ID: fmt.Sprintf("eni-%08x", c.seq), Type: cloud.InterfaceOrdinary, Status: "available",
		MAC:   net.HardwareAddr{2, 0, byte(c.seq >> 24), byte(c.seq >> 16), byte(c.seq >> 8), byte(c.seq)},
		VPCID: VPC, SubnetID: s.ID, Zone: s.Zone, Primary: addr,
	}}
	c.enis[e.ID] = e
	c.order = append(c.order, e)
	return e
}

// remove deletes a detached ENI. c.mu is held.
func (c *Cloud) remove(e *eni) {
	s := c.subnets[e.SubnetID]
	s.give(e.Primary)
	for _, a := range e.Addresses {
		s.give(a)
	}
	for _, p := range e.Prefixes {
		s.givePrefix(p)
	}
	delete(c.enis, e.ID)
	delete(c.detached, e.ID)
	e.deleted = true
	if len(c.order) > 2*len(c.enis)+1000 {
		c.order = slices.DeleteFunc(c.order, func(e *eni) bool { return e.deleted })
	}
}

// settle ends attachments and detachments whose time has come. c.mu is held.
func (c *Cloud) settle() {
	if len(c.settling) == 0 {
		return
	}
	now := c.clock.Now()
	for len(c.settling) > 0 && !c.settling[0].at.After(now) {
		at, e := c.settling[0].at, c.settling[0].eni
		c.settling[0] = change{}
		c.settling = c.settling[1:]
		switch {
		case e.Attachment == nil || !e.settled.Equal(at):
		case e.Attachment.Status == "attaching":
			e.Attachment.Status = "attached"
		case e.Attachment.Status == "detaching":
			c.detach(e)
		}
	}
}

// detach takes an ENI off its instance. c.mu is held.
func (c *Cloud) detach(e *eni) {
	if in := c.instances[e.Attachment.InstanceID]; in != nil {
		in.enis = slices.DeleteFunc(in.enis, func(o *eni) bool { return o == e })
	}
	delete(c.attached, e.Attachment.ID)
	e.Attachment, e.Status = nil, "available"
	c.detached[e.ID] = e
}

// changing notes that an ENI is attaching or detaching now. c.mu is held.
func (c *Cloud) changing(e *eni) {
	e.settled = c.clock.Now().Add(c.options.AttachTime)
	c.settling = append(c.settling, change{e.settled, e})
	c.settle()
}

// clone copies an ENI for a caller. The tags are shared: they are replaced,
// never changed.
func clone(e *eni) cloud.ENI {
	out := e.ENI
	out.MAC, out.Groups = slices.Clone(e.MAC), slices.Clone(e.Groups)
	out.Addresses, out.Prefixes, out.IPv6 = slices.Clone(e.Addresses), slices.Clone(e.Prefixes), slices.Clone(e.IPv6)
	if e.Attachment != nil {
		a := *e.Attachment
		out.Attachment = &a
	}
	return out
}
