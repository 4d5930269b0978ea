package enisource

import (
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/node/attachment"
)

// Offer takes an inventory from a supplier that names the addresses and prefixes that it asks back.
// None of those is handed out from now on. Offer returns those that no pod has and that do not cool,
// sorted: they are recorded as withdrawn, also over a restart. What was asked back before and no longer
// is becomes assignable again, if the inventory still has it.
//
// The file is written before any of these is handed out again. After an error nothing counts as
// withdrawn: the inventory is in use, and Offer has to be called again.
func (s *Source) Offer(inv eni.Inventory, back []netip.Prefix) (withdrawn []netip.Prefix, err error) {
	a := &s.addresses
	s.mu.Lock()
	a.releasing = cloud.SortPrefixes(append(a.releasing, back...)) // nothing is restored before the file is written
	a.withdrawReleasing(s.clock.Now())
	withdrawn = a.idle(back)
	s.mu.Unlock()
	inv.Releasing = nil
	for _, p := range withdrawn {
		inv.Releasing = append(inv.Releasing, eni.Release{Prefix: p, Since: inv.At})
	}
	err = s.file.save(func() { a.inv = inv })

	s.mu.Lock()
	defer s.mu.Unlock()
	a.confirm(inv)
	if err == nil {
		a.restoreAllBut(back)
	}
	a.serve(s.clock.Now())
	s.program.Set()
	return withdrawn, err
}

// Use is one address that a pod has, or had less than the cooling period ago, or that the node itself
// has.
type Use struct {
	Addr    netip.Addr
	ENI     string         // empty if no inventory lists the address
	Pod     attachment.Pod // empty for a cooling address, and for one that the node itself has
	Cooling bool
	Listed  bool // the inventory has it
}

// Uses returns the addresses in use, those withheld included, by address, and how many pods wait.
func (s *Source) Uses() (uses []Use, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for v := range s.addresses.alloc.Busied() {
		u := Use{Addr: v.Addr, ENI: v.Group, Cooling: v.Cooling, Listed: v.Group != ""}
		if v.Used {
			l := s.addresses.leases[v.Key]
			u.Pod = l.pod
			if u.ENI == "" {
				u.ENI = l.ENI
			}
		}
		uses = append(uses, u)
	}
	for v := range s.addresses.alloc.Addresses() {
		if slices.Contains(s.addresses.withheld, v.Addr) && !v.Used && !v.Cooling {
			uses = append(uses, Use{Addr: v.Addr, ENI: v.Group, Listed: v.Group != ""})
		}
	}
	slices.SortFunc(uses, func(x, y Use) int { return x.Addr.Compare(y.Addr) })
	return uses, s.addresses.waiters.Len()
}

// Room returns how many pods there are free addresses for, and how many pods wait. It is quick.
func (s *Source) Room() (free, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addresses.room(), s.addresses.waiters.Len()
}
