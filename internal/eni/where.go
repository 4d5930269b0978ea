package eni

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/eni/plan"
)

const subnetsAge = time.Minute // older free counts are asked for before growing

// starvedAge is subnetsAge for a node whose subnets have no room for what it
// lacks: others may free addresses at any time. One call serves all such nodes
// of a process; nodes that each ask for themselves keep to subnetsAge.
const starvedAge = 10 * time.Second

func (r *Reconciler) subnetsAge() time.Duration {
	if r.passive && r.starved {
		return starvedAge
	}
	return subnetsAge
}

// subnetsSince is the moment as of which free counts do at now.
func (r *Reconciler) subnetsSince(now time.Time) time.Time {
	since := now.Add(1 - r.subnetsAge())
	if r.recount.After(since) {
		return r.recount
	}
	return since
}

func (r *Reconciler) subnetsStale(now time.Time) bool {
	return r.subnetsAt.Before(r.subnetsSince(now))
}

func (r *Reconciler) subnetUnknown() bool {
	for _, k := range r.view.enis {
		if _, ok := r.cfg.Subnets.CIDR(k.SubnetID); !ok && ours(k.ENI, r.cfg.Cluster) {
			return true
		}
	}
	return false
}

// findSubnets describes the subnets of the node's ENIs and those for new ones.
func (r *Reconciler) findSubnets(ctx context.Context) error {
	now := r.cfg.Clock.Now()
	q := SubnetQuery{IDs: slices.Clone(r.cfg.SubnetIDs), Tags: r.cfg.SubnetTags, Any: r.anySubnet(), Since: r.subnetsSince(now)}
	q.VPCID, q.Zone = r.place()
	for _, k := range r.view.list() {
		if k.SubnetID != "" && !slices.Contains(q.IDs, k.SubnetID) {
			q.IDs = append(q.IDs, k.SubnetID)
		}
	}
	at, err := r.lister.Subnets(ctx, q)
	if err == nil {
		r.subnetsAt = at
	}
	return err
}

// place is the VPC and zone where subnets and security groups are looked for.
func (r *Reconciler) place() (vpc, zone string) {
	vpc, zone = cmp.Or(r.cfg.VPCID, r.vpc), cmp.Or(r.cfg.Zone, r.zone)
	if k, ok := r.view.primary(); ok {
		vpc, zone = cmp.Or(vpc, k.VPCID), cmp.Or(zone, k.Zone)
	}
	return vpc, zone
}

// anySubnet tells whether every subnet of VPC and zone may have new ENIs.
func (r *Reconciler) anySubnet() bool {
	return r.cfg.AnySubnet && len(r.cfg.SubnetIDs) == 0 && len(r.cfg.SubnetTags) == 0
}

// relevant are the subnets of the node's ENIs.
func (r *Reconciler) relevant() map[string]bool {
	m := make(map[string]bool, len(r.view.enis))
	for _, k := range r.view.enis {
		m[k.SubnetID] = true
	}
	return m
}

// forNew tells in which subnets new ENIs may be made.
func (r *Reconciler) forNew() plan.Candidates {
	c := plan.Candidates{IDs: r.cfg.SubnetIDs, Tags: r.cfg.SubnetTags, Any: r.cfg.AnySubnet}
	c.VPC, c.Zone = r.place()
	if k, ok := r.view.primary(); ok {
		c.Primary, c.InstanceZone = k.SubnetID, cmp.Or(k.Zone, c.Zone)
	} else {
		c.InstanceZone = c.Zone
	}
	return c
}
