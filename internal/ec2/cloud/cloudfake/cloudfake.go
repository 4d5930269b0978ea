// Package cloudfake is an EC2 in memory: the books of one VPC with EC2's rules for
// addresses, attachments and client tokens, in which no call costs more than what
// it changes or returns, also for very many nodes. Before the books are a delay
// for every call and token buckets that the client is not told of; faults that
// tests inject; and listings that trail behind the truth. It is a cloud.API that
// answers at once, and for pace.Cloud one that is called page by page. It
// measures what CPU time it takes itself, so that a benchmark can leave that out.
package cloudfake

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/limits"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
)

// VPC is the ID of the one VPC, Group that of its first security group.
const (
	VPC   = "vpc-1"
	Group = "sg-1"
)

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

	mu        sync.Mutex // guards all below, and options
	shared    *bucket
	buckets   map[string]*bucket
	stats     map[string]Stats
	busy      time.Duration // CPU time of the work done
	types     map[string]cloud.Limits
	instances map[string]*instance
	subnets   map[string]*subnet
	groups    map[string]map[string]string // tags of security groups
	routes    []cloud.RouteTable           // the first is the main one, which no subnet names
	enis      map[string]*eni
	attached  map[string]*eni // by attachment ID
	branches  map[string]*eni // by association ID
	detached  map[string]*eni // by ID
	order     []*eni          // by seq; deleted ones until there are too many
	settling  []change        // attachments and detachments that are not over, the next one first
	tokens    map[string]token
	seq       int
	dice      *rand.Rand               // for Options.Refused
	latency   map[string]time.Duration // by method, where it is not that of the options
	faults    []*Fault
	calls     []Call
	past      past
}

type instance struct {
	cloud.Instance // without ENIs
	enis           []*eni
}

type eni struct {
	cloud.ENI
	seq         int
	deleted     bool
	settled     time.Time         // when attaching or detaching is over
	association cloud.Association // of a branch; of others zero
	branches    []*eni            // of a trunk
}

// change is the end of an attachment or detachment; it counts if the ENI still
// says the same time.
type change struct {
	at time.Time
	*eni
}

// token is what a client token was used for, and what was answered.
type token struct {
	request     string
	eni         string
	association cloud.Association
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
		enis: map[string]*eni{}, attached: map[string]*eni{}, branches: map[string]*eni{}, detached: map[string]*eni{}, tokens: map[string]token{},
		dice: rand.New(rand.NewPCG(o.Seed, 2)), latency: map[string]time.Duration{}, routes: []cloud.RouteTable{{ID: "rtb-main", Main: true}},
	}
	c.shared = newBucket(o.Shared, o.Clock.Now())
	return c
}

// SetLatency delays each call of a method; an empty name means all others.
func (c *Cloud) SetLatency(method string, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if method == "" {
		c.options.Latency = d
	} else {
		c.latency[method] = d
	}
}

// SetAttachTime sets how long attaching and detaching take after the call.
func (c *Cloud) SetAttachTime(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.options.AttachTime = d
}

// AddSubnet adds a subnet with an IPv4 CIDR of /28 or larger.
func (c *Cloud) AddSubnet(id, zone, cidr string, tags map[string]string) {
	p := netip.MustParsePrefix(cidr)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subnets[id] = newSubnet(cloud.Subnet{ID: id, VPCID: VPC, Zone: zone, CIDR: p, Tags: maps.Clone(tags)})
}

// AddIPv6Subnet adds a subnet of IPv6 alone, with a /64.
func (c *Cloud) AddIPv6Subnet(id, zone, cidr string, tags map[string]string) {
	p := netip.MustParsePrefix(cidr)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subnets[id] = newSubnet(cloud.Subnet{ID: id, VPCID: VPC, Zone: zone, IPv6: []netip.Prefix{p}, IPv6Native: true, Tags: maps.Clone(tags)})
}

// SetIPv6 gives a subnet an IPv6 /64, of which nothing is taken; once a subnet.
func (c *Cloud) SetIPv6(id, cidr string) {
	p := netip.MustParsePrefix(cidr)
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.subnets[id]
	must(s.six == nil, "subnet %s has IPv6 already", id)
	s.IPv6 = []netip.Prefix{p}
	s.six = newSpace6(p)
}

// RemoveSubnet deletes a subnet, as EC2 lets one that is empty.
func (c *Cloud) RemoveSubnet(id string) { c.mu.Lock(); defer c.mu.Unlock(); delete(c.subnets, id) }

// SetFree leaves a subnet with so many free IPv4 addresses at most.
func (c *Cloud) SetFree(id string, most int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subnets[id].left = min(c.subnets[id].left, most)
}

// SetFragmented tells whether a subnet has no free IPv4 prefix left.
func (c *Cloud) SetFragmented(id string, on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subnets[id].fragmented = on
}

// AddSecurityGroup adds a security group with tags.
func (c *Cloud) AddSecurityGroup(id string, tags map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.groups[id] = tags
}

// AddRouteTable adds a route table with some subnets; all others have the main one.
func (c *Cloud) AddRouteTable(id string, subnets ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.routes = append(c.routes, cloud.RouteTable{ID: id, Subnets: subnets})
}

// must ends a program that sets up a cloud which cannot be.
func must(ok bool, format string, args ...any) {
	if !ok {
		panic(fmt.Sprintf(format, args...)) //nolint:forbidigo // a mistake in a test or benchmark
	}
}

// AddInstance starts an instance with its primary ENI. It counts as no call, as
// all that follows.
func (c *Cloud) AddInstance(id, instanceType, subnetID string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.limitsOf(instanceType)
	must(ok, "instance %s: no instance type %q", id, instanceType)
	e := c.newENI(c.subnets[subnetID], netip.Addr{})
	e.Groups = []string{Group}
	in := &instance{Instance: cloud.Instance{
		ID: id, Type: instanceType, State: "running", Zone: e.Zone, VPCID: VPC, SubnetID: subnetID, Primary: e.Primary,
	}}
	c.instances[id] = in
	c.attach(e, in, cloud.Attachment{ID: "attach-" + e.ID, Status: "attached", DeleteOnTermination: true})
	c.remember()
}

// AddENI attaches an ENI that Berth did not make just now, with tags and a type,
// and returns its ID. With Berth's tag of an instance it has Berth's description of that.
func (c *Cloud) AddENI(instance string, index int, kind cloud.InterfaceType, tags map[string]string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	in := c.instances[instance]
	e := c.newENI(c.subnets[in.SubnetID], netip.Addr{})
	e.Type = kind
	e.tag(tags)
	if of := tags["berth.dev/instance-id"]; of != "" {
		e.Description = "Berth (" + of + ")"
	}
	c.attach(e, in, cloud.Attachment{ID: "attach-" + e.ID, DeviceIndex: index, Status: "attached"})
	c.remember()
	return e.ID
}

// Steal takes an address off an ENI behind everyone's back.
func (c *Cloud) Steal(id string, addr netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.enis[id]
	e.Addresses, e.IPv6 = without(e.Addresses, []netip.Addr{addr}), without(e.IPv6, []netip.Addr{addr})
	c.remember()
}

// Terminate ends an instance. Its ENIs go, or are left detached, by DeleteOnTermination;
// branches of its trunks are left detached.
func (c *Cloud) Terminate(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	in := c.instances[id]
	if in == nil {
		return
	}
	delete(c.instances, id)
	for _, e := range in.enis {
		for len(e.branches) > 0 {
			c.endAssociation(e.branches[0])
		}
		delete(c.attached, e.Attachment.ID)
		keep := !e.Attachment.DeleteOnTermination
		e.Attachment, e.Status, e.settled = nil, "available", time.Time{}
		if keep {
			c.detached[e.ID] = e
		} else {
			c.remove(e)
		}
	}
	c.remember()
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
		c.types[instanceType] = l
	}
	return l, ok
}

// newENI makes a detached ENI with an address of a subnet: a free one that is given, or
// any, which there has to be; with none of a subnet of IPv6 alone. c.mu is held.
func (c *Cloud) newENI(s *subnet, addr netip.Addr) *eni {
	c.seq++
	switch {
	case s.IPv6Native:
	case addr.IsValid():
		s.takeThis(addr)
	default:
		var ok bool
		addr, ok = s.take()
		must(ok, "subnet %s is full", s.ID)
	}
	e := &eni{seq: c.seq, ENI: cloud.ENI{
		ID: fmt.Sprintf("eni-%017d", c.seq), Type: cloud.InterfaceOrdinary, Status: "available",
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
	if e.Primary.IsValid() {
		s.give(e.Primary)
	}
	s.giveAll(e.Addresses, e.Prefixes, e.IPv6Prefixes)
	delete(c.enis, e.ID)
	delete(c.detached, e.ID)
	e.deleted = true
	if len(c.order) > 2*len(c.enis)+1000 {
		c.order = slices.DeleteFunc(c.order, func(e *eni) bool { return e.deleted })
	}
}

// attach puts an ENI on an instance. c.mu is held.
func (c *Cloud) attach(e *eni, in *instance, a cloud.Attachment) {
	a.InstanceID = in.ID
	e.Attachment, e.Status = &a, "in-use"
	in.enis = append(in.enis, e)
	c.attached[a.ID] = e
	delete(c.detached, e.ID)
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
	i, _ := slices.BinarySearchFunc(c.settling, e.settled, func(s change, at time.Time) int { return cmp.Or(s.at.Compare(at), -1) })
	c.settling = slices.Insert(c.settling, i, change{e.settled, e})
	c.settle()
}

// clone copies an ENI for a caller. The tags are shared: they are replaced,
// never changed.
func clone(e *eni) cloud.ENI {
	out := e.ENI
	out.MAC, out.Groups = slices.Clone(e.MAC), slices.Clone(e.Groups)
	out.Addresses, out.Prefixes = slices.Clone(e.Addresses), slices.Clone(e.Prefixes)
	out.IPv6, out.IPv6Prefixes = slices.Clone(e.IPv6), slices.Clone(e.IPv6Prefixes)
	if e.Attachment != nil {
		a := *e.Attachment
		out.Attachment = &a
	}
	return out
}
