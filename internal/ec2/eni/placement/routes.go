package placement

import (
	"context"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/ec2/eni/plan"
)

// A pod in a subnet whose routes differ from those of the node's own subnet may lack a peered network
// or a NAT gateway that other pods reach. Among several candidates, subnets with the route table of the
// primary's subnet therefore come first; others are used only if none of these has all that is needed.

// routesTries is how often in a row EC2 is asked for route tables before an ENI is created without
// knowing them.
const routesTries = 3

// Routes is what a plan knew of the subnets' routes.
type Routes struct {
	matter bool // the choice of a subnet depends on them
	known  bool // they were found once
	fresh  bool // and not long ago
}

// Trouble is how the last questions for route tables failed.
type Trouble struct {
	Waits     bool // the backoff is not over
	Permanent bool // only a person can mend it
	Failures  int  // in a row
}

// Missing reports whether to ask for route tables before a new ENI is created by a plan that knew so
// much of them, and otherwise whether the creation has to wait.
func (k Routes) Missing(t Trouble) (ask, wait bool) {
	if !k.matter || k.fresh {
		return false, false
	}
	if !t.Waits {
		return true, false
	}
	// Older ones do, and without the permission all subnets are treated alike.
	return false, !k.known && !t.Permanent && t.Failures < routesTries
}

// FindRoutes asks for the route tables of the VPC of new ENIs.
func (p *Selector) FindRoutes(ctx context.Context) error {
	vpc, _ := p.vpcAndZone()
	return p.catalog.findRoutes(ctx, vpc, p.clock.Now())
}

// MarkRoutes marks the subnets whose routes are not the primary's, as far as known. Routes matter only
// where Berth chooses: a person who names subnets by ID has chosen, and another VPC has no routes like
// the instance's.
func (p *Selector) MarkRoutes(list []plan.Subnet) Routes {
	choice := 0
	for _, s := range list {
		if s.ForNew {
			choice++
		}
	}
	primary, ok := p.enis.Primary()
	vpc, _ := p.vpcAndZone()
	if !ok || choice < 2 || len(p.settings.SubnetIDs) > 0 || vpc == "" || vpc != p.instanceVPC() {
		return Routes{}
	}
	routes, fresh := p.catalog.routes.get(vpc, routesAge)
	for i := range list {
		list[i].OtherRoutes = routes.value.table(list[i].ID) != routes.value.table(primary.SubnetID)
	}
	return Routes{true, !routes.at.IsZero(), fresh}
}

// Desired is how a new ENI would be created, as far as that is known.
type Desired struct {
	subnets *Subnets
	in      plan.Candidates
	groups  []string  // sorted; none: not known
	since   time.Time // of the settings
	known   bool      // the primary ENI is known
}

// Desired returns how a new ENI would be created now.
func (p *Selector) Desired() Desired {
	primary, ok := p.enis.Primary()
	d := Desired{subnets: p.catalog.Subnets, in: p.candidates(), since: p.configured, known: ok}
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

// Outdated reports whether an ENI surely differs from a new one. An ENI that was created with the same
// settings, and has other groups, was changed by someone else, who would change the next one too: it is
// not outdated.
func (d Desired) Outdated(e ENI) bool {
	if !d.known {
		return false
	}
	if s, ok := d.subnets.described(e.SubnetID); ok && !d.in.Has(s) {
		return true
	}
	return len(d.groups) > 0 && len(e.Groups) > 0 && !e.Created.After(d.since) && !slices.Equal(set(e.Groups), d.groups)
}

// OtherGroups reports whether an ENI is to have the security groups of the primary, since none are
// configured, and has others. An ENI of another VPC cannot have them.
func (p *Selector) OtherGroups(e ENI) bool {
	primary, ok := p.enis.Primary()
	if !ok || len(p.settings.Groups)+len(p.settings.GroupTags) > 0 || primary.VPCID != e.VPCID {
		return false
	}
	return len(e.Groups) > 0 && len(primary.Groups) > 0 && !slices.Equal(set(e.Groups), set(primary.Groups))
}

// set returns a list in order, with each of its values once.
func set(list []string) []string { return slices.Compact(slices.Sorted(slices.Values(list))) }

// Unknown returns the steps that find out which ENIs are outdated, and where others could be created,
// where outdated ones are to be drained and that is not known.
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
