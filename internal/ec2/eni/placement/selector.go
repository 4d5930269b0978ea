package eni

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/ipfamily"
)

// placement is where the node's ENIs are and new ones may be made: VPC, zone,
// subnets with their routes, security groups.
type placement struct {
	subnetCounts
	cfg    *Config
	view   *view
	lister Lister

	vpc, zone string // the instance's, as EC2 says

	configured time.Time // when the settings became what they are
}

// vpcAndZone are the VPC and zone where subnets and security groups are looked for.
func (p *placement) vpcAndZone() (vpc, zone string) {
	vpc, zone = cmp.Or(p.cfg.VPCID, p.vpc), cmp.Or(p.cfg.Zone, p.zone)
	if k, ok := p.view.primary(); ok {
		vpc, zone = cmp.Or(vpc, k.VPCID), cmp.Or(zone, k.Zone)
	}
	return vpc, zone
}

// vpcs are where the node's ENIs are: the instance's VPC, and that configured
// for new ones if it is another; none while the instance's is not known.
func (p *placement) vpcs() []string {
	own := p.instanceVPC()
	switch other := p.cfg.VPCID; {
	case own == "":
		return nil
	case other == "" || other == own:
		return []string{own}
	default:
		return []string{own, other}
	}
}

// instanceVPC is the VPC of the instance; empty while it is not known.
func (p *placement) instanceVPC() string {
	if k, ok := p.view.primary(); ok {
		return cmp.Or(k.VPCID, p.vpc)
	}
	return p.vpc
}

// subnetUnknown tells whether one of the node's ENIs is in a subnet that was not described.
func (p *placement) subnetUnknown() bool {
	for _, k := range p.view.enis {
		if !k.facts.ours() {
			continue
		}
		// An ENI has no IPv4 address in a subnet of IPv6 alone, and only there.
		subnet, four := p.cfg.Shared.Subnets.blocksWith(k.SubnetID, k.Primary), k.Primary.IsValid()
		_, described := p.cfg.Shared.Subnets.described(k.SubnetID)
		if four && !subnet.CIDR.IsValid() || len(subnet.IPv6) == 0 && (!four || p.cfg.Policy.Families.Has(ipfamily.IPv6)) && !described {
			return true
		}
	}
	return false
}

// subnetsInUse are the subnets of the node's ENIs.
func (p *placement) subnetsInUse() map[string]bool {
	m := make(map[string]bool, len(p.view.enis))
	for _, k := range p.view.enis {
		m[k.SubnetID] = true
	}
	return m
}

// candidates tells in which subnets new ENIs may be made.
func (p *placement) candidates() plan.Candidates {
	c := plan.Candidates{IDs: p.cfg.SubnetIDs, Tags: p.cfg.SubnetTags, Any: p.cfg.AnySubnet}
	c.VPC, c.Zone = p.vpcAndZone()
	c.InstanceZone = c.Zone
	if k, ok := p.view.primary(); ok {
		c.Primary, c.InstanceZone = k.SubnetID, cmp.Or(k.Zone, c.Zone)
	}
	return c
}

// findSubnets describes the subnets of the node's ENIs and those for new ones.
func (p *placement) findSubnets(ctx context.Context) error {
	q := SubnetQuery{IDs: slices.Clone(p.cfg.SubnetIDs), Tags: p.cfg.SubnetTags, Since: p.since(p.cfg.Clock.Now())}
	q.Any = p.cfg.AnySubnet && len(p.cfg.SubnetIDs) == 0 && len(p.cfg.SubnetTags) == 0
	q.VPCID, q.Zone = p.vpcAndZone()
	for _, k := range p.view.list() {
		if k.SubnetID != "" && !slices.Contains(q.IDs, k.SubnetID) {
			q.IDs = append(q.IDs, k.SubnetID)
		}
	}
	at, err := p.lister.Subnets(ctx, q)
	if err == nil {
		p.asOf = at
	}
	return err
}

// groups are the security groups of a new ENI: those configured by ID or tags,
// else the primary's.
func (p *placement) groups(ctx context.Context) ([]string, error) {
	if len(p.cfg.Groups) > 0 {
		return p.cfg.Groups, nil
	}
	if len(p.cfg.GroupTags) > 0 {
		ctx, cancel := context.WithTimeout(cloud.WithPriority(ctx, cloud.Begun), callTimeout)
		defer cancel()
		vpc, _ := p.vpcAndZone()
		return p.cfg.Shared.findGroups(ctx, vpc, p.cfg.GroupTags, p.cfg.Clock.Now())
	}
	if k, ok := p.view.primary(); ok {
		return k.Groups, nil
	}
	return nil, nil
}

// A pod in a subnet whose routes are not those of the node's own may lack the
// way that the others have: a peered network, a NAT gateway. So where a new
// ENI may be made in several subnets, those with the route table of the
// primary's subnet come first; the others only when none of these has all that
// is asked for.

// routesTries is how often in a row route tables are asked for before an ENI is
// made without knowing them.
const routesTries = 3

// routesKnown is what a plan knew of the subnets' routes.
type routesKnown struct {
	matter bool // there is a choice to make by them
	known  bool // they were asked for once
	fresh  bool // and not long ago
}

// markRoutes notes of subnets that their routes are not the primary's, as far as
// known. They matter where Berth is to choose: a person who names subnets by ID
// has chosen, and another VPC has no routes like the instance's.
func (p *placement) markRoutes(list []plan.Subnet) routesKnown {
	choice := 0
	for _, s := range list {
		if s.ForNew {
			choice++
		}
	}
	k, ok := p.view.primary()
	vpc, _ := p.vpcAndZone()
	if !ok || choice < 2 || len(p.cfg.SubnetIDs) > 0 || vpc == "" || vpc != p.instanceVPC() {
		return routesKnown{}
	}
	routes, fresh := p.cfg.Shared.routes.of(vpc, routesAge)
	for i := range list {
		list[i].OtherRoutes = routes.value.table(list[i].ID) != routes.value.table(k.SubnetID)
	}
	return routesKnown{true, !routes.at.IsZero(), fresh}
}

// missing tells whether to ask for route tables before an ENI is made by a plan
// that knew so much of them, and whether to wait with it. Trouble is that of the
// last questions, if any.
func (k routesKnown) missing(trouble *backoff, now time.Time) (ask, wait bool) {
	if !k.matter || k.fresh {
		return false, false
	}
	if trouble == nil || !trouble.until.After(now) {
		return true, false
	}
	// Older ones do, and who may not ask goes on as if all were alike.
	return false, !k.known && !trouble.permanent() && trouble.failures < routesTries
}

// findRoutes asks for the route tables of the VPC of new ENIs.
func (p *placement) findRoutes(ctx context.Context) error {
	vpc, _ := p.vpcAndZone()
	return p.cfg.Shared.findRoutes(ctx, vpc, p.cfg.Clock.Now())
}
