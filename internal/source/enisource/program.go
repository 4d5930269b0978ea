package enisource

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/retry"
)

// programENIs brings the data path to what is published, whenever that
// changes, a link does, or, after a failure, some time has passed.
func (s *Source) programENIs(ctx context.Context) {
	var backoff retry.Backoff
	compared := false
	for {
		done := s.programAll(ctx, &compared)
		now := s.clock.Now()
		next := s.nextTold(now)
		if done {
			backoff = retry.Backoff{}
		} else {
			backoff.Fail(now, retry.First, retry.Most)
			next = retry.Earliest(now, next, backoff.Until)
		}
		var again <-chan time.Time
		if !next.IsZero() {
			again = s.clock.After(next.Sub(now))
		}
		select {
		case <-ctx.Done():
			return
		case <-s.kicked:
			compared = false
		case <-s.program:
		case <-again:
			compared = compared && !s.lacksLinks()
		}
	}
}

// programAll tells whether the data path has everything. Removals come first:
// a new ENI may have the device index of one that left. It compares the links of ENIs, which
// dumps all of the node's, unless that was done.
func (s *Source) programAll(ctx context.Context, compared *bool) bool {
	*compared = *compared || s.followLinks(ctx)
	defer s.review()
	remove, set := s.differences()
	ok := *compared
	for _, id := range remove {
		if err := s.opts.Datapath.RemoveENI(ctx, id); err != nil {
			s.log.Warn("data path of an ENI not removed", "eni", id, "error", err)
			ok = false
			continue
		}
		s.mu.Lock()
		delete(s.programmed, id)
		delete(s.absent, id)
		s.mu.Unlock()
	}
	for _, e := range set {
		err := s.opts.Datapath.SetENI(ctx, e)
		s.programDone(e, err)
		ok = ok && err == nil
	}
	return ok
}

// differences lists what the data path has too much and what it lacks. The
// data path of an ENI that is no longer listed stays while pods hold its
// addresses, unless another ENI took its place.
func (s *Source) differences() (remove []string, set []eni.ENI) {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := map[int]bool{}
	for _, e := range s.published {
		taken[e.DeviceIndex] = true
	}
	for _, id := range sortedIDs(s.programmed) {
		if _, ok := s.published[id]; !ok && (!s.holds(id) || taken[s.programmed[id].DeviceIndex]) {
			remove = append(remove, id)
		}
	}
	for _, id := range sortedIDs(s.published) {
		_, absent := s.absent[id]
		if e := s.wanted(s.published[id]); absent || !e.Equal(s.programmed[id]) {
			s.programming(e)
			set = append(set, e)
		}
	}
	return remove, set
}

// wanted is a published ENI as the data path should have it. Its own address
// may not be for pods any more, and a pod have it still, or have had it lately:
// then it is not the node's yet. s.mu is held.
func (s *Source) wanted(e eni.ENI) eni.ENI {
	if a := e.PrimaryIPv4; !e.Primary && s.alloc.Busy(a) && !slices.Contains(e.Addresses, a) {
		e.Addresses = append([]netip.Addr{a}, e.Addresses...)
	}
	return e
}

// freed has the data path look again if one of free addresses is an ENI's own. s.mu
// is held.
func (s *Source) freed(l ipam.Addresses) {
	for _, e := range s.published {
		if e.PrimaryIPv4.IsValid() && slices.Contains(l.List(), e.PrimaryIPv4) {
			s.program.Set()
		}
	}
}

// programming notes that the data path may lack, from now on, what e lacks: if
// that is published again meanwhile, it is not assignable before its turn. s.mu
// is held.
func (s *Source) programming(e eni.ENI) {
	done, ok := s.programmed[e.ID]
	if !ok {
		return
	}
	for _, l := range [...]struct{ of, keep *[]netip.Addr }{{&done.Addresses, &e.Addresses}, {&done.IPv6, &e.IPv6}} {
		*l.of = filter(*l.of, func(a netip.Addr) bool { return slices.Contains(*l.keep, a) })
	}
	for _, l := range [...]struct{ of, keep *[]netip.Prefix }{{&done.Prefixes, &e.Prefixes}, {&done.IPv6Prefixes, &e.IPv6Prefixes}} {
		*l.of = filter(*l.of, func(p netip.Prefix) bool { return slices.Contains(*l.keep, p) })
	}
	s.programmed[e.ID] = done
}

// programDone takes the result of SetENI: what was programmed, and is still
// published, is assignable from now on.
func (s *Source) programDone(e eni.ENI, err error) {
	s.mu.Lock()
	s.linkAbsent(e.ID, err)
	if err != nil {
		s.down[e.ID] = err.Error()
		s.mu.Unlock()
		s.log.Debug("data path of an ENI not ready", "eni", e.ID, "error", err)
		return
	}
	delete(s.down, e.ID)
	s.programmed[e.ID] = e
	if _, ok := s.published[e.ID]; ok {
		s.list(e.ID)
	}
	first := !s.usable && len(addressesOf(e))+len(prefixesOf(e)) > 0
	s.usable = s.usable || first
	s.serve(s.clock.Now())
	s.mu.Unlock()
	s.supply.Kick()
	if !first {
		return
	}
	if err := s.save(func() {}); err != nil {
		s.log.Warn("inventory not recorded", "error", err)
	}
}
