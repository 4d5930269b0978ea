package placement

import (
	"slices"
	"time"

	"github.com/berthnet/berth/internal/ec2/eni/plan"
)

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

// Outdated reports whether an ENI surely differs from a new one. An ENI that was
// created with the same settings, and has other groups, was changed by someone else,
// who would change the next one too: it is not outdated.
func (d Desired) Outdated(e ENI) bool {
	if !d.known {
		return false
	}
	if s, ok := d.subnets.described(e.SubnetID); ok && !d.in.Has(s) {
		return true
	}
	return len(d.groups) > 0 && len(e.Groups) > 0 && !e.Created.After(d.since) && !slices.Equal(set(e.Groups), d.groups)
}

// OtherGroups reports whether an ENI is to have the security groups of the primary,
// since none are configured, and has others. An ENI of another VPC cannot have them.
func (p *Selector) OtherGroups(e ENI) bool {
	primary, ok := p.enis.Primary()
	if !ok || len(p.settings.Groups)+len(p.settings.GroupTags) > 0 || primary.VPCID != e.VPCID {
		return false
	}
	return len(e.Groups) > 0 && len(primary.Groups) > 0 && !slices.Equal(set(e.Groups), set(primary.Groups))
}

// set returns a list in order, with each of its values once.
func set(list []string) []string { return slices.Compact(slices.Sorted(slices.Values(list))) }

// Unknown returns the steps that find out which ENIs are outdated, and where others
// could be created, where outdated ones are to be drained and that is not known.
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
