package eni

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/eni/plan"
)

// subnetsAge is how old free counts may be before growing.
const subnetsAge = time.Minute

// exhaustedAge is subnetsAge for a node whose subnets have no room for what it
// lacks: others may free addresses at any time. One call serves all such nodes
// of a process; nodes that each ask for themselves keep to subnetsAge.
const exhaustedAge = 10 * time.Second

// subnetCounts is how old the free counts are that a node's plans go by.
type subnetCounts struct {
	shared    bool      // one call serves many nodes
	asOf      time.Time // as of when free counts are known
	newerThan time.Time // free counts must be as of then or later
	exhausted bool      // the node would grow if its subnets had room
	retryAt   time.Time // when a subnet that was refused is worth another try
}

// since is the moment as of which free counts do at now.
func (c *subnetCounts) since(now time.Time) time.Time {
	since := now.Add(1 - c.age())
	if c.newerThan.After(since) {
		return c.newerThan
	}
	return since
}

func (c *subnetCounts) age() time.Duration {
	if c.shared && c.exhausted {
		return exhaustedAge
	}
	return subnetsAge
}

// stale tells whether free counts are to be asked for.
func (c *subnetCounts) stale(now time.Time) bool { return c.asOf.Before(c.since(now)) }

// due is when a subnet is tried again, or an exhausted one asked about.
func (c *subnetCounts) due(now time.Time) time.Time {
	first := earliest(now, c.retryAt)
	if c.exhausted {
		first = earliest(now, first, c.asOf.Add(c.age()))
	}
	return first
}

// subnetUnknown tells whether one of the node's ENIs is in a subnet that was not described.
func (r *Reconciler) subnetUnknown() bool {
	for _, k := range r.view.enis {
		if _, ok := r.cfg.Subnets.CIDRWith(k.SubnetID, k.Primary); !ok && k.facts.ours() {
			return true
		}
	}
	return false
}

// findSubnets describes the subnets of the node's ENIs and those for new ones.
func (r *Reconciler) findSubnets(ctx context.Context) error {
	now := r.cfg.Clock.Now()
	q := SubnetQuery{IDs: slices.Clone(r.cfg.SubnetIDs), Tags: r.cfg.SubnetTags, Since: r.counts.since(now)}
	q.Any = r.cfg.AnySubnet && len(r.cfg.SubnetIDs) == 0 && len(r.cfg.SubnetTags) == 0
	q.VPCID, q.Zone = r.vpcAndZone()
	for _, k := range r.view.list() {
		if k.SubnetID != "" && !slices.Contains(q.IDs, k.SubnetID) {
			q.IDs = append(q.IDs, k.SubnetID)
		}
	}
	at, err := r.lister.Subnets(ctx, q)
	if err == nil {
		r.counts.asOf = at
	}
	return err
}

// vpcAndZone are the VPC and zone where subnets and security groups are looked for.
func (r *Reconciler) vpcAndZone() (vpc, zone string) {
	vpc, zone = cmp.Or(r.cfg.VPCID, r.instance.vpc), cmp.Or(r.cfg.Zone, r.instance.zone)
	if k, ok := r.view.primary(); ok {
		vpc, zone = cmp.Or(vpc, k.VPCID), cmp.Or(zone, k.Zone)
	}
	return vpc, zone
}

// ownSubnets are the subnets of the node's ENIs.
func (r *Reconciler) ownSubnets() map[string]bool {
	m := make(map[string]bool, len(r.view.enis))
	for _, k := range r.view.enis {
		m[k.SubnetID] = true
	}
	return m
}

// forNew tells in which subnets new ENIs may be made.
func (r *Reconciler) forNew() plan.Candidates {
	c := plan.Candidates{IDs: r.cfg.SubnetIDs, Tags: r.cfg.SubnetTags, Any: r.cfg.AnySubnet}
	c.VPC, c.Zone = r.vpcAndZone()
	c.InstanceZone = c.Zone
	if k, ok := r.view.primary(); ok {
		c.Primary, c.InstanceZone = k.SubnetID, cmp.Or(k.Zone, c.Zone)
	}
	return c
}
