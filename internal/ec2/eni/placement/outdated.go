package eni

import (
	"slices"
	"time"

	"github.com/berthnet/berth/internal/ec2/eni/plan"
)

// wanted is how new ENIs would be. Old ones that are not so are outdated.
type wanted struct {
	subnets *Subnets
	in      plan.Candidates
	groups  []string  // sorted; none: it is not known which
	since   time.Time // of the settings
	known   bool      // anything is, of the node
}

// wanted is what the settings ask for, as far as it is known.
func (p *placement) wanted() wanted {
	primary, ok := p.view.primary()
	w := wanted{subnets: p.cfg.Shared.Subnets, in: p.candidates(), since: p.configured, known: ok}
	switch {
	case len(p.cfg.Groups) > 0:
		w.groups = set(p.cfg.Groups)
	case len(p.cfg.GroupTags) > 0:
		vpc, _ := p.vpcAndZone()
		found, _ := p.cfg.Shared.foundGroups(vpc, p.cfg.GroupTags)
		w.groups = set(found)
	case ok:
		w.groups = set(primary.Groups)
	}
	return w
}

// differs tells whether an ENI is surely not as new ones would be. One that was made with
// the same settings had other groups from somebody else: another would get them too, so
// it is as new ones are.
func (w wanted) differs(k *known) bool {
	if !w.known {
		return false
	}
	if s, ok := w.subnets.described(k.SubnetID); ok && !w.in.Has(s) {
		return true
	}
	return len(w.groups) > 0 && len(k.Groups) > 0 && !k.createdAt().After(w.since) && !slices.Equal(set(k.Groups), w.groups)
}

// set is a list in order, with each of its values once.
func set(list []string) []string { return slices.Compact(slices.Sorted(slices.Values(list))) }

// unknown are the steps that tell which ENIs are outdated, and what others could be
// made, if outdated ones are to be drained and that is not known, or was long ago.
func (p *placement) unknown(now time.Time) (ask []plan.Kind) {
	if !p.cfg.DrainOutdated {
		return nil
	}
	if p.asOf.IsZero() || p.drains && !p.asOf.After(now.Add(-outdatedAge)) {
		ask = append(ask, plan.FindSubnets)
	}
	if len(p.cfg.Groups) == 0 && len(p.cfg.GroupTags) > 0 {
		vpc, _ := p.vpcAndZone()
		if _, fresh := p.cfg.Shared.foundGroups(vpc, p.cfg.GroupTags); !fresh {
			ask = append(ask, plan.FindGroups)
		}
	}
	return ask
}
