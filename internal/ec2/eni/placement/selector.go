// Package placement decides in which subnets, and with which security groups, a
// node's new ENIs are created.
//
//	selector.go  one node: its VPC, zone, candidate subnets and security groups
//	routes.go    ... subnets with the routes of the primary's come first, and ENIs that a new one would differ from
//	subnets.go   free addresses of subnets, and reservations; shared by all nodes
//	catalog.go   security groups by tags and route tables; shared likewise
package placement

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/retry"
)

// Settings is what a person configured for the new ENIs of a node.
type Settings struct {
	VPCID, Zone string            // empty: the instance's
	SubnetIDs   []string          // come before SubnetTags
	SubnetTags  map[string]string // come before AnySubnet
	AnySubnet   bool              // every subnet of VPC and zone, rather than the primary ENI's alone
	Groups      []string          // security groups; come before GroupTags
	GroupTags   map[string]string // with neither: the primary ENI's groups
	Drain       bool              // outdated ENIs are replaced
	IPv6        bool              // pods get IPv6 addresses
}

// ENI is what a Selector needs to know of one ENI.
type ENI struct {
	VPCID, Zone, SubnetID string
	Groups                []string   // empty: not known
	Address               netip.Addr // the primary IPv4 address, if it has one
	Created               time.Time  // zero: not known
	Ours                  bool       // Berth may change it
}

// ENIs is the node's current view of its ENIs.
type ENIs interface {
	Primary() (ENI, bool) // false: it is not known yet
	Each(func(ENI))       // calls for each ENI of the node, by device index
}

// Query is what a node needs to know of subnets.
type Query struct {
	IDs         []string // of its ENIs, and those configured for new ones
	VPCID, Zone string
	Tags        map[string]string // configured for new ENIs
	Any         bool              // every subnet of VPC and zone may have new ENIs
	Since       time.Time         // older answers do not do
}

// Selector chooses subnets and security groups for one node's new ENIs. It belongs to the goroutine
// that reconciles the node.
type Selector struct {
	catalog *Catalog
	enis    ENIs
	find    func(context.Context, Query) (time.Time, error)
	clock   clock.Clock

	settings   Settings
	configured time.Time // when the settings became what they are
	vpc, zone  string    // the instance's, as EC2 says
	counts     freshness
}

// NewSelector returns the Selector of a node. Find updates the catalog's free counts and returns as of
// when they are; shared says that one call of it serves many nodes.
func NewSelector(c *Catalog, s Settings, enis ENIs, shared bool, now clock.Clock, find func(context.Context, Query) (time.Time, error)) *Selector {
	return &Selector{catalog: c, enis: enis, find: find, clock: now, settings: s, configured: now.Now(), counts: freshness{shared: shared}}
}

// Configure replaces the settings. Free counts are asked for again before the node grows.
func (p *Selector) Configure(s Settings) {
	p.settings, p.configured, p.counts.asOf = s, p.clock.Now(), time.Time{}
}

// Located records the VPC and zone of the instance; empty ones are ignored.
func (p *Selector) Located(vpc, zone string) {
	p.vpc, p.zone = cmp.Or(vpc, p.vpc), cmp.Or(zone, p.zone)
}

// vpcAndZone returns the VPC and zone in which subnets and security groups are looked for.
func (p *Selector) vpcAndZone() (vpc, zone string) {
	vpc, zone = cmp.Or(p.settings.VPCID, p.vpc), cmp.Or(p.settings.Zone, p.zone)
	if e, ok := p.enis.Primary(); ok {
		vpc, zone = cmp.Or(vpc, e.VPCID), cmp.Or(zone, e.Zone)
	}
	return vpc, zone
}

// VPCs returns the VPCs of the node's ENIs: the instance's, and the one configured for new ENIs if it
// differs; none while the instance's is not known.
func (p *Selector) VPCs() []string {
	own := p.instanceVPC()
	switch other := p.settings.VPCID; {
	case own == "":
		return nil
	case other == "" || other == own:
		return []string{own}
	default:
		return []string{own, other}
	}
}

// instanceVPC returns the VPC of the instance; empty while it is not known.
func (p *Selector) instanceVPC() string {
	if e, ok := p.enis.Primary(); ok {
		return cmp.Or(e.VPCID, p.vpc)
	}
	return p.vpc
}

// SubnetUnknown reports whether EC2 has not described the subnet of one of the node's ENIs.
func (p *Selector) SubnetUnknown() (unknown bool) {
	p.enis.Each(func(e ENI) {
		if !e.Ours || unknown {
			return
		}
		// An ENI has no IPv4 address in an IPv6-only subnet, and only there.
		subnet, four := p.catalog.Subnets.BlocksWith(e.SubnetID, e.Address), e.Address.IsValid()
		_, described := p.catalog.Subnets.described(e.SubnetID)
		unknown = four && !subnet.CIDR.IsValid() || len(subnet.IPv6) == 0 && (!four || p.settings.IPv6) && !described
	})
	return unknown
}

// candidates returns which subnets new ENIs may be created in.
func (p *Selector) candidates() plan.Candidates {
	c := plan.Candidates{IDs: p.settings.SubnetIDs, Tags: p.settings.SubnetTags, Any: p.settings.AnySubnet}
	c.VPC, c.Zone = p.vpcAndZone()
	c.InstanceZone = c.Zone
	if e, ok := p.enis.Primary(); ok {
		c.Primary, c.InstanceZone = e.SubnetID, cmp.Or(e.Zone, c.Zone)
	}
	return c
}

// inUse returns the subnets of the node's ENIs.
func (p *Selector) inUse() map[string]bool {
	m := map[string]bool{}
	p.enis.Each(func(e ENI) { m[e.SubnetID] = true })
	return m
}

// Subnets returns the node's subnets and the candidates for new ENIs as a plan sees them. MarkRoutes
// marks those with other routes.
func (p *Selector) Subnets(now time.Time) (list []plan.Subnet) {
	p.Choose(now, func(l []plan.Subnet) (a plan.Action, subnet string) { list = l; return a, "" })
	return list
}

// Choose lets pick choose an action and its subnet, and reserves the addresses that the action takes
// before another node chooses. An empty subnet reserves nothing, and the result is nil. Pick must make
// no call.
func (p *Selector) Choose(now time.Time, pick func([]plan.Subnet) (a plan.Action, subnet string)) *Reservation {
	return p.catalog.Subnets.choose(now, p.inUse(), p.candidates(), pick)
}

// FindSubnets describes the subnets of the node's ENIs and the candidates for new ones.
func (p *Selector) FindSubnets(ctx context.Context) error {
	s := p.settings
	q := Query{IDs: slices.Clone(s.SubnetIDs), Tags: s.SubnetTags, Since: p.counts.since(p.clock.Now())}
	q.Any = s.AnySubnet && len(s.SubnetIDs) == 0 && len(s.SubnetTags) == 0
	q.VPCID, q.Zone = p.vpcAndZone()
	p.enis.Each(func(e ENI) {
		if e.SubnetID != "" && !slices.Contains(q.IDs, e.SubnetID) {
			q.IDs = append(q.IDs, e.SubnetID)
		}
	})
	at, err := p.find(ctx, q)
	if err == nil {
		p.counts.asOf = at
	}
	return err
}

// FindGroups returns the security groups of a new ENI: those configured by ID or tags, or else the
// primary's. Groups that are found by tags may take a call.
func (p *Selector) FindGroups(ctx context.Context) ([]string, error) {
	if len(p.settings.Groups) > 0 {
		return p.settings.Groups, nil
	}
	if len(p.settings.GroupTags) > 0 {
		ctx, cancel := context.WithTimeout(cloud.WithPriority(ctx, cloud.Begun), callTimeout)
		defer cancel()
		vpc, _ := p.vpcAndZone()
		return p.catalog.findGroups(ctx, vpc, p.settings.GroupTags, p.clock.Now())
	}
	e, _ := p.enis.Primary()
	return e.Groups, nil
}

// CountsStale reports whether free counts are to be asked for before the node grows.
func (p *Selector) CountsStale(now time.Time) bool { return p.counts.asOf.Before(p.counts.since(now)) }

// Planned records what the last plan lacked: exhausted says that the node would grow if its subnets had
// room, drains that outdated ENIs are being replaced.
func (p *Selector) Planned(exhausted, drains bool) {
	p.counts.exhausted, p.counts.drains = exhausted, drains
}

// RefusedIPv6 records that a subnet had no IPv6 address or /80 left.
func (p *Selector) RefusedIPv6(subnet string, until time.Time) {
	p.catalog.Subnets.refusedIPv6(subnet, until)
	p.counts.retryAt = until
}

// RefusedPrefix records that a subnet had no aligned /28 left.
func (p *Selector) RefusedPrefix(subnet string, until time.Time) {
	p.catalog.Subnets.refusedPrefix(subnet, until)
	p.counts.retryAt = until
}

// Refused records that a subnet had fewer than n addresses left.
func (p *Selector) Refused(subnet string, n int, now time.Time) {
	p.counts.retryAt = p.catalog.Subnets.refused(subnet, n, now)
	p.counts.newerThan = now
}

// SubnetGone has subnets described again, since the one chosen may not exist any more.
func (p *Selector) SubnetGone(now time.Time) { p.counts.newerThan = now }

// Due returns when there is something to ask for although nothing happens; zero: never.
func (p *Selector) Due(now time.Time) time.Time { return p.counts.due(now) }

// countsAge is the age up to which free counts are used for growing.
const countsAge = time.Minute

// exhaustedAge is countsAge for a node whose subnets have no room for what it lacks, since others may
// free addresses at any time. It applies where one call serves all such nodes of a process; a node that
// asks for itself alone keeps to countsAge.
const exhaustedAge = 10 * time.Second

// freshness decides when the free counts of a node's subnets are asked for again.
type freshness struct {
	shared    bool      // one call serves many nodes
	asOf      time.Time // when the counts were asked for
	newerThan time.Time // the counts must be as of then or later
	exhausted bool      // the node would grow if its subnets had room
	drains    bool      // the node replaces outdated ENIs as far as its subnets have room
	retryAt   time.Time // when a subnet that refused is tried again
}

// since returns the earliest time as of which counts are fresh at now.
func (c *freshness) since(now time.Time) time.Time {
	since := youngerThan(c.age(), now)
	if c.newerThan.After(since) {
		return c.newerThan
	}
	return since
}

func (c *freshness) age() time.Duration {
	if c.shared && c.exhausted {
		return exhaustedAge
	}
	return countsAge
}

// due returns when a subnet is tried again, or counts are asked for although the node does not grow;
// zero: never.
func (c *freshness) due(now time.Time) time.Time {
	first := retry.Earliest(now, c.retryAt)
	if c.exhausted {
		first = retry.Earliest(now, first, c.asOf.Add(c.age()))
	}
	if c.drains {
		first = retry.Earliest(now, first, c.asOf.Add(outdatedAge))
	}
	return first
}
