package enisource

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
)

// Usage implements the reconciler's Node. The node uses what is withheld: others are asked for in its place, and its
// ENI stays.
func (s *Source) Usage() eni.Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := eni.Usage{ENIs: map[string]eni.ENIUsage{}, Waiting: s.waiters.Len(), MissingLinks: s.missingLinks()}
	for _, g := range s.alloc.Groups() {
		of := eni.ENIUsage{Used: g.Used() + g.Withheld(), Cooling: g.Cooling(), Assignable: g.Assignable(s.inv.Families)}
		for f, c := range g.Of {
			of.Free = of.Free.Plus(cloud.AmountIn(ipfamily.Family(f), c.FreeSingles, c.FreePrefixes))
		}
		u.ENIs[g.ID] = of
	}
	for _, l := range s.leases {
		if _, ok := s.published[l.ENI]; !ok && l.ENI != "" { // such as one that is not attached any more
			of := u.ENIs[l.ENI]
			of.Used++
			u.ENIs[l.ENI] = of
		}
	}
	return u
}

// Publish implements the reconciler's Node: the file first, then the memory.
func (s *Source) Publish(_ context.Context, inv eni.Inventory) error {
	err := s.save(func() { s.inv = inv })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.served, s.unconfirmed = true, false
	s.adopt(inv)
	s.serve(s.clock.Now())
	s.program.Set()
	return err
}

// save changes the inventory in memory and writes the file, in one order.
func (s *Source) save(change func()) error {
	s.saving.Lock()
	defer s.saving.Unlock()
	s.mu.Lock()
	change()
	inv := s.inv
	inv.Usable = s.usable
	s.mu.Unlock()
	if s.opts.Store == nil || inv.InstanceID == "" {
		return nil
	}
	return s.opts.Store.Save(inv)
}

// load takes over the stored inventory, to serve from if the supply is away.
func (s *Source) load() {
	if s.opts.Store == nil {
		return
	}
	inv, ok, err := s.opts.Store.Load()
	switch {
	case err != nil:
		s.log.Warn("stored inventory not used", "error", err)
		return
	case !ok:
		return
	case inv.InstanceID != s.opts.InstanceID:
		s.log.Info("stored inventory is of another instance", "instance", inv.InstanceID)
		return
	}
	s.supply.Seed(inv)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inv, s.usable, s.served, s.unconfirmed = inv, inv.Usable, true, true
	s.adopt(inv)
	for _, r := range inv.Releasing {
		s.alloc.WithdrawThese([]netip.Prefix{r.Prefix})
	}
	s.program.Set()
}

// adopt takes an inventory into the allocator. What is gone is gone at once;
// what is new becomes assignable when the data path has it. s.mu is held.
func (s *Source) adopt(inv eni.Inventory) {
	next := map[string]eni.ENI{}
	for _, e := range inv.ENIs {
		if e.Serves {
			next[e.ID] = e
		}
	}
	before := s.published
	s.published = next
	for id := range before {
		if _, ok := next[id]; !ok {
			s.alloc.LoseGroup(id)
			delete(s.down, id)
			if !s.holds(id) {
				delete(s.absent, id)
			}
		}
	}
	for id := range s.absent {
		_, was := before[id]
		if _, is := next[id]; is && !was { // it was attached again, and its link is to come
			s.absent[id] = absence{since: s.clock.Now()}
		}
	}
	for _, id := range sortedIDs(next) {
		if old, ok := before[id]; !ok || !old.Equal(next[id]) {
			s.list(id)
		}
	}
}

// list tells the allocator what of an ENI it may work with: all of one that is
// not ready yet, as nothing of it is assignable, and of a ready one what is
// programmed, or busy already. s.mu is held.
func (s *Source) list(id string) {
	e := s.published[id]
	done, ready := s.programmed[id]
	g := ipam.Group{ID: id, Index: e.DeviceIndex, Addresses: addressesOf(e), Prefixes: prefixesOf(e)}
	if ready {
		addrs, prefixes := addressesOf(done), prefixesOf(done)
		g.Addresses = filter(g.Addresses, func(a netip.Addr) bool { return slices.Contains(addrs, a) || s.alloc.Busy(a) })
		g.Prefixes = filter(g.Prefixes, func(p netip.Prefix) bool { return slices.Contains(prefixes, p) })
	}
	s.alloc.SetGroup(g)
	_, absent := s.absent[id]
	s.alloc.SetReady(id, ready && !absent)
}

// addressesOf are an ENI's single addresses for pods, of both families.
func addressesOf(e eni.ENI) []netip.Addr { return slices.Concat(e.Addresses, e.IPv6) }

// prefixesOf are an ENI's prefixes, of both families.
func prefixesOf(e eni.ENI) []netip.Prefix { return slices.Concat(e.Prefixes, e.IPv6Prefixes) }

func filter[T any](list []T, keep func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(list), func(x T) bool { return !keep(x) })
}

// Withdraw implements the reconciler's Node.
func (s *Source) Withdraw(id string, want cloud.Amount) (withdrawn []netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range ipfamily.Dual.Families() {
		addresses, prefixes := want.Of(f)
		withdrawn = append(withdrawn, s.alloc.Withdraw(id, f, addresses, prefixes)...)
	}
	return withdrawn
}

// RestoreWithdrawn implements the reconciler's Node.
func (s *Source) RestoreWithdrawn(withdrawn []netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.alloc.Restore(withdrawn)
	s.serve(s.clock.Now())
}

// WithdrawENI implements the reconciler's Node.
func (s *Source) WithdrawENI(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.leases {
		if l.ENI == id {
			return false // also one that the cloud does not list as its own
		}
	}
	if _, ok := s.published[id]; !ok {
		return true
	}
	return s.alloc.WithdrawGroup(id) == nil
}

func sortedIDs[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
