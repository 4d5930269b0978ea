package enisource

import (
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/node/attachment"
)

// Offer takes over an inventory from a supplier that names the addresses and
// prefixes that it wants back. None of those is handed out from now on. Returned
// are those that no pod has and that do not cool, sorted: they are recorded as
// withdrawn, and no restart changes that. What was asked back before and is not
// any more is assignable again, if the inventory still has it.
//
// The file is written before anything newly free is handed out. With an error
// nothing is known to be withdrawn: the inventory is in use, and Offer is to be
// called again.
func (s *Source) Offer(inv eni.Inventory, back []netip.Prefix) (withdrawn []netip.Prefix, err error) {
	s.mu.Lock()
	s.releasing = sorted(append(s.releasing, back...)) // nothing is freed before the file says so
	s.withdrawReleasing(s.clock.Now())
	withdrawn = s.idle(back)
	s.mu.Unlock()
	inv.Releasing = nil
	for _, p := range withdrawn {
		inv.Releasing = append(inv.Releasing, eni.Release{Prefix: p, Since: inv.At})
	}
	err = s.save(func() { s.inv = inv })

	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	s.served, s.unconfirmed = true, false
	s.adopt(inv)
	if err == nil {
		s.restoreAllBut(back)
	}
	s.serve(now)
	s.program.Set()
	return withdrawn, err
}

// withdrawReleasing withdraws what the supplier wants back, as far as no pod has it and
// it does not cool. s.mu is held.
func (s *Source) withdrawReleasing(now time.Time) {
	if len(s.releasing) > 0 {
		s.alloc.Expire(now)
		s.alloc.WithdrawThese(s.releasing)
	}
}

// restoreAllBut makes assignable what was kept and is not in back. s.mu is held.
func (s *Source) restoreAllBut(back []netip.Prefix) {
	freed := slices.DeleteFunc(s.releasing, func(p netip.Prefix) bool { return slices.Contains(back, p) })
	s.alloc.Restore(freed)
	s.releasing = slices.Clone(back)
}

// idle lists those of things in which no address is used or cools, sorted.
// s.mu is held.
func (s *Source) idle(things []netip.Prefix) (out []netip.Prefix) {
	out = slices.Clone(things)
	for v := range s.alloc.Busied() {
		out = slices.DeleteFunc(out, func(p netip.Prefix) bool { return p.Contains(v.Addr) })
	}
	return sorted(out)
}

func sorted(list []netip.Prefix) []netip.Prefix {
	slices.SortFunc(list, netip.Prefix.Compare)
	return slices.Compact(list)
}

// Use is one address that a pod has, or had less than the cooling period ago, or that the node has itself.
type Use struct {
	Addr    netip.Addr
	ENI     string         // empty while no inventory lists the address
	Pod     attachment.Pod // whose it is; empty while it cools, and of what the node has itself
	Cooling bool
	Listed  bool // the inventory has it
}

// Uses lists the addresses in use, by address, those withheld included, and tells how many pods wait.
func (s *Source) Uses() (uses []Use, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for v := range s.alloc.Busied() {
		u := Use{Addr: v.Addr, ENI: v.Group, Cooling: v.Cooling, Listed: v.Group != ""}
		if v.Used {
			l := s.leases[v.Key]
			u.Pod = l.pod
			if u.ENI == "" {
				u.ENI = l.ENI
			}
		}
		uses = append(uses, u)
	}
	for v := range s.alloc.Addresses() {
		if slices.Contains(s.withheld, v.Addr) && !v.Used && !v.Cooling {
			uses = append(uses, Use{Addr: v.Addr, ENI: v.Group, Listed: v.Group != ""})
		}
	}
	slices.SortFunc(uses, func(x, y Use) int { return x.Addr.Compare(y.Addr) })
	return uses, s.waiters.Len()
}

// Room tells for how many pods there are free addresses now, and how many pods
// wait. It is quick.
func (s *Source) Room() (free, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.alloc.Groups() {
		if g.Ready {
			free += g.Assignable(s.inv.Families)
		}
	}
	return free, s.waiters.Len()
}
