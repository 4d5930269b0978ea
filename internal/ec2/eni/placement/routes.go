package placement

import (
	"context"

	"github.com/berthnet/berth/internal/ec2/eni/plan"
)

// A pod in a subnet whose routes differ from those of the node's own subnet may
// lack a peered network or a NAT gateway that other pods reach. Among several
// candidates, subnets with the route table of the primary's subnet therefore come
// first; others are used only if none of these has all that is needed.

// routesTries is how often in a row EC2 is asked for route tables before an ENI is
// created without knowing them.
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

// Missing reports whether to ask for route tables before a new ENI is created by a
// plan that knew so much of them, and otherwise whether the creation has to wait.
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

// MarkRoutes marks the subnets whose routes are not the primary's, as far as
// known. Routes matter only where Berth chooses: a person who names subnets by ID
// has chosen, and another VPC has no routes like the instance's.
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
