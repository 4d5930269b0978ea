// Package cloudfake is an in-memory EC2, for tests and for the planner (internal/planner): one VPC with EC2's rules for addresses, attachments and client tokens.
// The cost of a call depends only on what it changes or returns, so it scales to very many nodes. It can delay
// calls, limit their rate, fail them, and let listings lag. It is a cloud.API that replies immediately, and a
// pace.Calls for pace.Cloud. It measures its own CPU time, so that benchmarks can subtract it.
package cloudfake

import (
	"cmp"
	"context"
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

// VPC is the ID of the VPC, Group that of its first security group.
const (
	VPC   = "vpc-1"
	Group = "sg-1"
)

// Options configure the cloud. The zero value replies immediately and has no limits.
type Options struct {
	Clock      clock.Clock   // the system clock if nil
	Latency    time.Duration // from a call to its effect and reply
	AttachTime time.Duration // from the reply to the end of attaching or detaching
	// Shared is a bucket for all actions together.
	Shared *Bucket
	// Buckets are the buckets of single actions, by EC2's name. "Describe" applies to each action with that
	// prefix, and "" to each other action.
	Buckets map[string]Bucket
	// Refused is the share of calls that are throttled at random, reproducible by Seed.
	Refused float64
	Seed    uint64
	// PageSize is the maximum number of ENIs per page; 1000 if 0.
	PageSize int
}

// Cloud is the VPC as seen by one client. Create it with New, then add subnets and instances to its State.
// It is safe for concurrent use.
type Cloud struct {
	Front    *Front // delays, rate limits, faults and log of calls
	State    *State // subnets, instances and ENIs
	pageSize int
	via      func(ctx context.Context, call func(context.Context) error) error // wraps the client's calls; may be nil
}

// State is the state of the VPC. Its exported methods do not count as calls.
type State struct {
	mu      sync.Mutex                   // guards all below, with enis; locked after Front.mu
	subnets map[string]*subnet           // by ID
	groups  map[string]map[string]string // tags of security groups, by ID
	routes  []cloud.RouteTable           // the first is the main one, without associations
	tokens  map[string]token             // by client token
	enis    *enis
	peak    *peak
}

// enis holds the ENIs and the instances that they are attached to. State.mu guards it.
type enis struct {
	clock      clock.Clock
	attachTime time.Duration // from the reply to the end of attaching or detaching
	byID       map[string]*eni
	instances  map[string]*instance
	attached   map[string]*eni // by attachment ID
	branches   map[string]*eni // by association ID
	detached   map[string]*eni // by ID
	order      []*eni          // by seq; includes deleted ENIs until they are compacted
	settling   []change        // attachments and detachments in progress, the next one first
	past       past
	types      map[string]cloud.Limits // cache, by instance type
	seq        int
}

type instance struct {
	cloud.Instance // without ENIs
	enis           []*eni
}

type eni struct {
	cloud.ENI
	seq         int
	deleted     bool
	settled     time.Time         // the end of attaching or detaching
	association cloud.Association // zero unless a branch
	branches    []*eni            // of a trunk
}

// change is the end of an attachment or detachment. It is void if the ENI's settled time has changed since.
type change struct {
	at time.Time
	*eni
}

// token is the request and the result of a client token.
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
	return &Cloud{
		pageSize: o.PageSize,
		Front: &Front{
			clock: o.Clock, latency: o.Latency, latencies: map[string]time.Duration{}, shared: newBucket(o.Shared, o.Clock.Now()), own: o.Buckets,
			buckets: map[string]*bucket{}, refused: o.Refused, dice: rand.New(rand.NewPCG(o.Seed, 2)), stats: map[string]Stats{},
		},
		State: &State{
			subnets: map[string]*subnet{}, groups: map[string]map[string]string{Group: {}}, routes: []cloud.RouteTable{{ID: "rtb-main", Main: true}},
			tokens: map[string]token{}, peak: &peak{clock: o.Clock},
			enis: &enis{
				clock: o.Clock, attachTime: o.AttachTime, byID: map[string]*eni{}, instances: map[string]*instance{}, attached: map[string]*eni{},
				branches: map[string]*eni{}, detached: map[string]*eni{}, types: map[string]cloud.Limits{},
			},
		},
	}
}

// Client returns the same VPC for another client. do wraps each of its calls, and may reject it or cancel its
// context.
func (c *Cloud) Client(do func(ctx context.Context, call func(context.Context) error) error) *Cloud {
	n := *c
	n.via = do
	return &n
}

// SetAttachTime sets the time that attaching and detaching take after the call.
func (st *State) SetAttachTime(d time.Duration) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.enis.attachTime = d
}

// AddSubnet adds a subnet with an IPv4 CIDR of /28 or larger.
func (st *State) AddSubnet(id, zone, cidr string, tags map[string]string) {
	p := netip.MustParsePrefix(cidr)
	st.mu.Lock()
	defer st.mu.Unlock()
	st.subnets[id] = newSubnet(cloud.Subnet{ID: id, VPCID: VPC, Zone: zone, CIDR: p, Tags: maps.Clone(tags)}, st.peak)
}

// AddIPv6Subnet adds an IPv6-only subnet, with a /64.
func (st *State) AddIPv6Subnet(id, zone, cidr string, tags map[string]string) {
	p := netip.MustParsePrefix(cidr)
	st.mu.Lock()
	defer st.mu.Unlock()
	st.subnets[id] = newSubnet(cloud.Subnet{ID: id, VPCID: VPC, Zone: zone, IPv6: []netip.Prefix{p}, IPv6Native: true, Tags: maps.Clone(tags)}, st.peak)
}

// SetIPv6 adds an unused IPv6 /64 to a subnet that has none.
func (st *State) SetIPv6(id, cidr string) {
	p := netip.MustParsePrefix(cidr)
	st.mu.Lock()
	defer st.mu.Unlock()
	s := st.subnets[id]
	must(s.six == nil, "subnet %s already has IPv6", id)
	s.IPv6 = []netip.Prefix{p}
	s.six = newSpace6(p)
}

// RemoveSubnet deletes an empty subnet.
func (st *State) RemoveSubnet(id string) { st.mu.Lock(); defer st.mu.Unlock(); delete(st.subnets, id) }

// SetFree limits the number of free IPv4 addresses of a subnet.
func (st *State) SetFree(id string, most int) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.subnets[id].left = min(st.subnets[id].left, most)
}

// SetFragmented sets whether a subnet pretends to have no free IPv4 prefix.
func (st *State) SetFragmented(id string, on bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.subnets[id].fragmented = on
}

// AddSecurityGroup adds a security group with tags.
func (st *State) AddSecurityGroup(id string, tags map[string]string) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.groups[id] = tags
}

// AddRouteTable adds a route table with associated subnets.
func (st *State) AddRouteTable(id string, subnets ...string) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.routes = append(st.routes, cloud.RouteTable{ID: id, Subnets: subnets})
}

// must panics if the setup of a cloud is invalid.
func must(ok bool, format string, args ...any) {
	if !ok {
		panic(fmt.Sprintf(format, args...)) //nolint:forbidigo // a mistake in a test or benchmark
	}
}

// AddInstance starts an instance with its primary ENI.
func (st *State) AddInstance(id, instanceType, subnetID string) {
	st.mu.Lock()
	defer st.mu.Unlock()
	_, ok := st.enis.limitsOf(instanceType)
	must(ok, "instance %s: no instance type %q", id, instanceType)
	e := st.newENI(st.subnets[subnetID], netip.Addr{})
	e.Groups = []string{Group}
	in := &instance{Instance: cloud.Instance{
		ID: id, Type: instanceType, State: "running", Zone: e.Zone, VPCID: VPC, SubnetID: subnetID, Primary: e.Primary,
	}}
	st.enis.instances[id] = in
	st.enis.attach(e, in, cloud.Attachment{ID: "attach-" + e.ID, Status: "attached", DeleteOnTermination: true})
	st.enis.remember()
}

// AddENI attaches an ENI that was created outside this run, and returns its ID. If tags include Berth's instance
// tag, it gets Berth's description.
func (st *State) AddENI(instance string, index int, kind cloud.InterfaceType, tags map[string]string) string {
	st.mu.Lock()
	defer st.mu.Unlock()
	in := st.enis.instances[instance]
	e := st.newENI(st.subnets[in.SubnetID], netip.Addr{})
	e.Type = kind
	e.tag(tags)
	if of := tags["berth.dev/instance-id"]; of != "" {
		e.Description = "Berth (" + of + ")"
	}
	st.enis.attach(e, in, cloud.Attachment{ID: "attach-" + e.ID, DeviceIndex: index, Status: "attached"})
	st.enis.remember()
	return e.ID
}

// Steal removes an address from an ENI, as another client would.
func (st *State) Steal(id string, addr netip.Addr) {
	st.mu.Lock()
	defer st.mu.Unlock()
	e := st.enis.byID[id]
	e.Addresses, e.IPv6 = without(e.Addresses, []netip.Addr{addr}), without(e.IPv6, []netip.Addr{addr})
	st.enis.remember()
}

// Terminate ends an instance. Its ENIs are deleted or detached, by DeleteOnTermination; branches of its
// trunks are detached.
func (st *State) Terminate(id string) {
	st.mu.Lock()
	defer st.mu.Unlock()
	in := st.enis.instances[id]
	if in == nil {
		return
	}
	delete(st.enis.instances, id)
	for _, e := range in.enis {
		for len(e.branches) > 0 {
			st.enis.endAssociation(e.branches[0])
		}
		delete(st.enis.attached, e.Attachment.ID)
		keep := !e.Attachment.DeleteOnTermination
		e.Attachment, e.Status, e.settled = nil, "available", time.Time{}
		if keep {
			st.enis.detached[e.ID] = e
		} else {
			st.remove(e)
		}
	}
	st.enis.remember()
}

// Truth lists all ENIs in the order of creation, without lag.
func (st *State) Truth() []cloud.ENI {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.enis.settle()
	out := make([]cloud.ENI, 0, len(st.enis.byID))
	for _, e := range st.enis.order {
		if !e.deleted {
			out = append(out, clone(e))
		}
	}
	return out
}

// Each calls do with the ENIs of Truth, which it must neither change nor keep.
func (st *State) Each(do func(*cloud.ENI)) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.enis.settle()
	for _, e := range st.enis.order {
		if !e.deleted {
			do(&e.ENI)
		}
	}
}

// limitsOf returns the limits of a type. State.mu is held.
func (es *enis) limitsOf(instanceType string) (cloud.Limits, bool) {
	if l, ok := es.types[instanceType]; ok {
		return l, true
	}
	l, ok := limits.Lookup(instanceType)
	if ok {
		es.types[instanceType] = l
	}
	return l, ok
}

// newENI creates a detached ENI with the given free address of a subnet, or any if addr is zero. It panics if none
// is free, unless the subnet is IPv6-only. State.mu is held.
func (st *State) newENI(s *subnet, addr netip.Addr) *eni {
	st.enis.seq++
	switch {
	case s.IPv6Native:
	case addr.IsValid():
		s.takeThis(addr)
	default:
		var ok bool
		addr, ok = s.take()
		must(ok, "subnet %s is full", s.ID)
	}
	e := &eni{seq: st.enis.seq, ENI: cloud.ENI{
		ID: fmt.Sprintf("eni-%017d", st.enis.seq), Type: cloud.InterfaceOrdinary, Status: "available",
		MAC:   net.HardwareAddr{2, 0, byte(st.enis.seq >> 24), byte(st.enis.seq >> 16), byte(st.enis.seq >> 8), byte(st.enis.seq)},
		VPCID: VPC, SubnetID: s.ID, Zone: s.Zone, Primary: addr,
	}}
	st.enis.byID[e.ID] = e
	st.peak.most.ENIs = max(st.peak.most.ENIs, len(st.enis.byID))
	st.enis.order = append(st.enis.order, e)
	return e
}

// remove deletes a detached ENI. State.mu is held.
func (st *State) remove(e *eni) {
	s := st.subnets[e.SubnetID]
	if e.Primary.IsValid() {
		s.give(e.Primary)
	}
	s.giveAll(e.Addresses, e.Prefixes, e.IPv6Prefixes)
	delete(st.enis.byID, e.ID)
	delete(st.enis.detached, e.ID)
	e.deleted = true
	if len(st.enis.order) > 2*len(st.enis.byID)+1000 {
		st.enis.order = slices.DeleteFunc(st.enis.order, func(e *eni) bool { return e.deleted })
	}
}

// attach attaches an ENI to an instance. State.mu is held.
func (es *enis) attach(e *eni, in *instance, a cloud.Attachment) {
	a.InstanceID = in.ID
	e.Attachment, e.Status = &a, "in-use"
	in.enis = append(in.enis, e)
	es.attached[a.ID] = e
	delete(es.detached, e.ID)
}

// settle ends attachments and detachments that are due. State.mu is held.
func (es *enis) settle() {
	if len(es.settling) == 0 {
		return
	}
	now := es.clock.Now()
	for len(es.settling) > 0 && !es.settling[0].at.After(now) {
		at, e := es.settling[0].at, es.settling[0].eni
		es.settling[0] = change{}
		es.settling = es.settling[1:]
		switch {
		case e.Attachment == nil || !e.settled.Equal(at):
		case e.Attachment.Status == "attaching":
			e.Attachment.Status = "attached"
		case e.Attachment.Status == "detaching":
			es.detach(e)
		}
	}
}

// detach detaches an ENI from its instance. State.mu is held.
func (es *enis) detach(e *eni) {
	if in := es.instances[e.Attachment.InstanceID]; in != nil {
		in.enis = slices.DeleteFunc(in.enis, func(o *eni) bool { return o == e })
	}
	delete(es.attached, e.Attachment.ID)
	e.Attachment, e.Status = nil, "available"
	es.detached[e.ID] = e
}

// changing marks the ENI as attaching or detaching until attachTime has passed. State.mu is held.
func (es *enis) changing(e *eni) {
	e.settled = es.clock.Now().Add(es.attachTime)
	i, _ := slices.BinarySearchFunc(es.settling, e.settled, func(s change, at time.Time) int { return cmp.Or(s.at.Compare(at), -1) })
	es.settling = slices.Insert(es.settling, i, change{e.settled, e})
	es.settle()
}

// clone copies an ENI for a caller. The tag map is shared, because it is never modified.
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
