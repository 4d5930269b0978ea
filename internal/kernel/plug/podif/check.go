package podif

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Check adds the differences of a link in the pod from a port's interface.
func (s *Namespace) Check(name string, i plug.Interface, found *plug.Differences) error {
	link, err := s.Link(name)
	if err != nil {
		return err
	}
	if link == nil {
		found.Add("the pod lacks link %s", name)
		return nil
	}
	l := link.Attrs()
	*found = append(*found, linkOf(name, i).Differences(l)...)
	var checked []int
	for _, p := range i.Addresses {
		family := rtnl.FamilyOf(p.Addr())
		if slices.Contains(checked, family) {
			continue
		}
		checked = append(checked, family)
		from, err := rtnl.SourceRules(l.Index, family, s.NL)
		if err != nil {
			return fmt.Errorf("%s: %w", s.Path, err)
		}
		d, err := s.differences(l, i, family, from)
		if err != nil {
			return fmt.Errorf("%s: %w", s.Path, err)
		}
		d.describe(name, found)
	}
	return nil
}

func (d differences) describe(name string, found *plug.Differences) {
	for _, p := range d.addresses.Missing {
		found.Add("%s lacks address %s", name, p)
	}
	for _, r := range d.routes.Missing {
		if r.Table == mainTable {
			found.Add("the pod lacks the route of %s to %s", name, rtnl.RouteDst(r))
		} else {
			found.Add("the pod lacks the route from addresses of %s to %s", name, rtnl.RouteDst(r))
		}
	}
	for _, a := range d.rules.Missing {
		found.Add("the pod lacks its rule for packets from %s", a)
	}
	for _, p := range d.addresses.Extra {
		found.Add("%s has address %s, which the port no longer has", name, p)
	}
	for _, a := range d.rules.Extra {
		if slices.ContainsFunc(d.addresses.Extra, func(p netip.Prefix) bool { return p.Addr() == a }) {
			continue
		}
		found.Add("the pod has a rule for packets from %s, which the port no longer has", a)
	}
}
