package placement

import (
	"context"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/ec2/eni/plan"
)

// A pod in a subnet whose routes differ from those of the node's own subnet may lack a peered network or a NAT
// gateway that other pods reach. Among several candidates, subnets with the route table of the primary's subnet
// therefore come first; others are used only if none of these has enough.

// routesTries is how many requests for route tables may fail in a row before an ENI is created without knowing the
// routes.
const routesTries = 3

// Routes is a plan's knowledge of the subnets' routes.
type Routes struct {
	matter bool // the choice of a subnet depends on routes
	known  bool // routes have been found
	fresh  bool // and are recent
}

// Trouble describes the last failures to fetch route tables.
type Trouble struct {
	Waits     bool // in backoff
	Permanent bool // needs human intervention
	Failures  int  // in a row
}

// Missing reports whether to fetch route tables before creating a new ENI with a plan that knew these routes, and
// otherwise whether the creation has to wait.
func (k Routes) Missing(t Trouble) (ask, wait bool) {
	if !k.matter || k.fresh {
		return false, false
	}
	if !t.Waits {
		return true, false
	}
	// Older routes will do, and without the permission all subnets are treated alike.
	return false, !k.known && !t.Permanent && t.Failures < routesTries
}

// FindRoutes fetches the route tables of the VPC of new ENIs.
func (p *Selector) FindRoutes(ctx context.Context) error {
	vpc, _ := p.vpcAndZone()
	return p.catalog.findRoutes(ctx, vpc, p.clock.Now())
}

// MarkRoutes marks the subnets whose known routes are not the primary's. Routes matter only if Berth chooses the
// subnet: subnets configured by ID are a deliberate choice, and another VPC never has the instance's routes.
func (p *Selector) MarkRoutes(list []plan.Subnet) Routes {
	choice := 0
	for _, s := range list {
		if s.ForNew {
			choice++
		}
	}
	if choice < 2 || len(p.settings.SubnetIDs) > 0 {
		return Routes{}
	}
	primary, ok := p.enis.Primary()
	vpc, _ := p.vpcAndZoneWith(primary)
	if !ok || vpc == "" || vpc != p.instanceVPC() {
		return Routes{}
	}
	routes, fresh := p.catalog.routes.get(vpc, routesAge)
	for i := range list {
		list[i].OtherRoutes = routes.value.table(list[i].ID) != routes.value.table(primary.SubnetID)
	}
	return Routes{true, !routes.at.IsZero(), fresh}
}

// Desired describes how a new ENI would be created, as far as known.
type Desired struct {
	subnets *Subnets
	in      plan.Candidates
	groups  []string  // sorted; empty if unknown
	since   time.Time // time of the settings
	known   bool      // the primary ENI is known
}

// Desired returns how a new ENI would be created now.
func (p *Selector) Desired() *Desired {
	primary, ok := p.enis.Primary()
	d := &Desired{subnets: p.catalog.Subnets, in: p.candidates(), since: p.configured, known: ok}
	switch {
	case len(p.settings.Groups) > 0:
		d.groups = set(p.settings.Groups)
	case len(p.settings.GroupTags) > 0:
		vpc, _ := p.vpcAndZone()
		found, _ := p.catalog.foundGroups(vpc, p.settings.GroupTags)
		d.groups = set(found)
	case ok:
		d.groups = set(primary.Groups)
	}
	return d
}

// Outdated reports whether an ENI certainly differs from a new one. If an ENI was created with the same settings but
// has other groups, someone else changed it, and would change the next one, too: it is not outdated.
func (d *Desired) Outdated(e ENI) bool {
	if !d.known {
		return false
	}
	if s, ok := d.subnets.described(e.SubnetID); ok && !d.in.Has(s) {
		return true
	}
	return len(d.groups) > 0 && len(e.Groups) > 0 && !e.Created.After(d.since) && !slices.Equal(set(e.Groups), d.groups)
}

// OtherGroups reports whether an ENI should have the primary's security groups, because none are configured, but has
// others. An ENI in another VPC cannot have them.
func (p *Selector) OtherGroups(e ENI) bool {
	primary, ok := p.enis.Primary()
	if !ok || len(p.settings.Groups)+len(p.settings.GroupTags) > 0 || primary.VPCID != e.VPCID {
		return false
	}
	return len(e.Groups) > 0 && len(primary.Groups) > 0 && !slices.Equal(set(e.Groups), set(primary.Groups))
}

// set returns a sorted list without duplicates.
func set(list []string) []string { return slices.Compact(slices.Sorted(slices.Values(list))) }

// Unknown returns the steps that find out which ENIs are outdated and where to create replacements, if outdated ENIs
// are drained and this is not known.
func (p *Selector) Unknown(now time.Time) (ask []plan.Kind) {
	if !p.settings.Drain {
		return nil
	}
	if p.counts.asOf.IsZero() || p.counts.drains && !p.counts.asOf.After(now.Add(-outdatedAge)) {
		ask = append(ask, plan.FindSubnets)
	}
	if len(p.settings.Groups) == 0 && len(p.settings.GroupTags) > 0 {
		vpc, _ := p.vpcAndZone()
		if _, fresh := p.catalog.foundGroups(vpc, p.settings.GroupTags); !fresh {
			ask = append(ask, plan.FindGroups)
		}
	}
	return ask
}
