// Package placement decides the subnets and security groups of a node's new ENIs.
//
//	selector.go  one node: its VPC, zone, candidate subnets and security groups
//	routes.go    ... preference for subnets with the primary's routes, and detection of outdated ENIs
//	subnets.go   free addresses of subnets, and reservations; shared by all nodes
//	catalog.go   security groups by tags, and route tables; shared by all nodes
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

// Settings is the configuration of a node's new ENIs.
type Settings struct {
	VPCID, Zone string            // the instance's if empty
	SubnetIDs   []string          // take precedence over SubnetTags
	SubnetTags  map[string]string // take precedence over AnySubnet
	AnySubnet   bool              // every subnet of VPC and zone, rather than only the primary ENI's
	Groups      []string          // security groups; take precedence over GroupTags
	GroupTags   map[string]string // without Groups and GroupTags, the primary ENI's groups apply
	Drain       bool              // replace outdated ENIs
	IPv6        bool              // pods get IPv6 addresses
}

// ENI is the state of an ENI as far as a Selector needs it.
type ENI struct {
	VPCID, Zone, SubnetID string
	Groups                []string   // empty if unknown
	Address               netip.Addr // the primary IPv4 address, if it has one
	Created               time.Time  // zero if unknown
	Ours                  bool       // Berth may change it
}

// ENIs is the node's current view of its ENIs.
type ENIs interface {
	Primary() (ENI, bool) // false if not yet known
	Each(func(ENI))       // calls for each ENI of the node, by device index
}

// Query selects the subnets that a node needs to know.
type Query struct {
	IDs         []string // subnets of its ENIs, and those configured for new ones
	VPCID, Zone string
	Tags        map[string]string // configured for new ENIs
	Any         bool              // new ENIs may be in every subnet of VPC and zone
	Since       time.Time         // older answers are not accepted
}

// Selector chooses subnets and security groups for one node's new ENIs. It belongs to the goroutine of the node's
// reconciler.
type Selector struct {
	catalog *Catalog
	enis    ENIs
	find    func(context.Context, Query) (time.Time, error)
	clock   clock.Clock

	settings   Settings
	configured time.Time // time of the last change of the settings
	vpc, zone  string    // the instance's, according to EC2
	counts     freshness
}

// NewSelector returns the Selector of a node. Find updates the catalog's free counts and returns the time as of which
// they are valid; shared means that one call of find serves many nodes.
func NewSelector(c *Catalog, s Settings, enis ENIs, shared bool, now clock.Clock, find func(context.Context, Query) (time.Time, error)) *Selector {
	return &Selector{catalog: c, enis: enis, find: find, clock: now, settings: s, configured: now.Now(), counts: freshness{shared: shared}}
}

// Configure replaces the settings. Free counts are fetched again before the node grows.
func (p *Selector) Configure(s Settings) {
	p.settings, p.configured, p.counts.asOf = s, p.clock.Now(), time.Time{}
}

// Located records the VPC and zone of the instance; empty ones are ignored.
func (p *Selector) Located(vpc, zone string) {
	p.vpc, p.zone = cmp.Or(vpc, p.vpc), cmp.Or(zone, p.zone)
}

// vpcAndZone returns the VPC and zone of new subnets and security groups.
func (p *Selector) vpcAndZone() (vpc, zone string) {
	e, _ := p.enis.Primary()
	return p.vpcAndZoneWith(e)
}

// vpcAndZoneWith is vpcAndZone with a known primary ENI, which is zero if there is none yet.
func (p *Selector) vpcAndZoneWith(primary ENI) (vpc, zone string) {
	return cmp.Or(p.settings.VPCID, p.vpc, primary.VPCID), cmp.Or(p.settings.Zone, p.zone, primary.Zone)
}

// VPCs returns the VPCs of the node's ENIs: the instance's, and the one configured for new ENIs if it differs; none
// while the instance's is unknown.
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

// instanceVPC returns the VPC of the instance; empty while unknown.
func (p *Selector) instanceVPC() string {
	if e, ok := p.enis.Primary(); ok {
		return cmp.Or(e.VPCID, p.vpc)
	}
	return p.vpc
}

// SubnetUnknown reports whether EC2 has not yet described the subnet of one of the node's ENIs.
func (p *Selector) SubnetUnknown() (unknown bool) {
	p.enis.Each(func(e ENI) {
		if !e.Ours || unknown {
			return
		}
		// An ENI lacks an IPv4 address exactly if its subnet is IPv6-only.
		subnet, four := p.catalog.Subnets.BlocksWith(e.SubnetID, e.Address), e.Address.IsValid()
		_, described := p.catalog.Subnets.described(e.SubnetID)
		unknown = four && !subnet.CIDR.IsValid() || len(subnet.IPv6) == 0 && (!four || p.settings.IPv6) && !described
	})
	return unknown
}

// candidates returns the subnets in which new ENIs may be created.
func (p *Selector) candidates() plan.Candidates {
	e, _ := p.enis.Primary()
	c := plan.Candidates{IDs: p.settings.SubnetIDs, Tags: p.settings.SubnetTags, Any: p.settings.AnySubnet, Primary: e.SubnetID}
	c.VPC, c.Zone = p.vpcAndZoneWith(e)
	c.InstanceZone = cmp.Or(e.Zone, c.Zone)
	return c
}

// addInUse adds the subnets of the node's ENIs to a list of IDs.
func (p *Selector) addInUse(ids []string) []string {
	p.enis.Each(func(e ENI) {
		if e.SubnetID != "" && !slices.Contains(ids, e.SubnetID) {
			ids = append(ids, e.SubnetID)
		}
	})
	return ids
}

// Subnets returns the node's subnets and the candidates for new ENIs in the form for plans. MarkRoutes marks those
// with other routes.
func (p *Selector) Subnets(now time.Time) (list []plan.Subnet) {
	p.Choose(now, func(l []plan.Subnet) (a plan.Action, subnet string) { list = l; return a, "" })
	return list
}

// Choose lets pick choose an action and its subnet, and reserves the required addresses before another node can
// choose. An empty subnet reserves nothing, and the result is nil. Pick must not make calls.
func (p *Selector) Choose(now time.Time, pick func([]plan.Subnet) (a plan.Action, subnet string)) *Reservation {
	return p.catalog.Subnets.choose(now, p.addInUse(nil), p.candidates(), pick)
}

// FindSubnets describes the subnets of the node's ENIs and the candidates for new ones.
func (p *Selector) FindSubnets(ctx context.Context) error {
	s := p.settings
	q := Query{IDs: p.addInUse(slices.Clone(s.SubnetIDs)), Tags: s.SubnetTags, Since: p.counts.since(p.clock.Now())}
	q.Any = s.AnySubnet && len(s.SubnetIDs) == 0 && len(s.SubnetTags) == 0
	q.VPCID, q.Zone = p.vpcAndZone()
	at, err := p.find(ctx, q)
	if err == nil {
		p.counts.asOf = at
	}
	return err
}

// FindGroups returns the security groups of a new ENI: those configured by ID or tags, otherwise the primary's.
// Finding groups by tags may take a call.
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

// CountsStale reports whether free counts must be fetched before the node grows.
func (p *Selector) CountsStale(now time.Time) bool { return p.counts.asOf.Before(p.counts.since(now)) }

// Planned records the shortages of the last plan: exhausted means that the node would grow if its subnets had room,
// drains that outdated ENIs are being replaced.
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

// SubnetGone requires subnets to be described again, because the chosen one may no longer exist.
func (p *Selector) SubnetGone(now time.Time) { p.counts.newerThan = now }

// Due returns when to fetch counts even if nothing happens; zero means never.
func (p *Selector) Due(now time.Time) time.Time { return p.counts.due(now) }

// countsAge is the maximum age of free counts for growth.
const countsAge = time.Minute

// exhaustedAge replaces countsAge for a node whose subnets lack room, because other clients may free addresses at any
// time. It applies only if one call serves all such nodes of a process.
const exhaustedAge = 10 * time.Second

// freshness decides when to fetch the free counts of a node's subnets again.
type freshness struct {
	shared    bool      // one call serves many nodes
	asOf      time.Time // when the counts were requested
	newerThan time.Time // the counts must not be older
	exhausted bool      // the node would grow if its subnets had room
	drains    bool      // the node replaces outdated ENIs while its subnets have room
	retryAt   time.Time // when to retry a subnet that refused addresses
}

// since returns the oldest time of counts that are fresh at now.
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

// due returns when to retry a subnet, or fetch counts although the node does not grow; zero means never.
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
