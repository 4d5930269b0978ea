package eni

import (
	"context"
	"time"

	"github.com/berthnet/berth/internal/eni"
)

// How often an ENI that is not ready is tried again when nobody kicks.
const (
	firstRetry = 250 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// programENIs brings the data path to what is published, whenever that
// changes, a link does, or, after a failure, some time has passed.
func (s *Source) programENIs(ctx context.Context) {
	wait := firstRetry
	for {
		var retry <-chan time.Time
		if s.programAll(ctx) {
			wait = firstRetry
		} else {
			retry = s.clock.After(wait)
			wait = min(2*wait, lastRetry)
		}
		select {
		case <-ctx.Done():
			return
		case <-s.program:
		case <-retry:
		}
	}
}

// programAll tells whether the data path has everything. Removals come first:
// a new ENI may have the device index of one that left.
func (s *Source) programAll(ctx context.Context) bool {
	remove, set := s.differences()
	ok := true
	for _, id := range remove {
		if err := s.opts.Datapath.RemoveENI(ctx, id); err != nil {
			s.log.Warn("data path of an ENI not removed", "eni", id, "error", err)
			ok = false
			continue
		}
		s.mu.Lock()
		delete(s.programmed, id)
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
	held := map[string]bool{}
	for _, l := range s.leases {
		held[l.ENI] = true
	}
	taken := map[int]bool{}
	for _, e := range s.published {
		taken[e.DeviceIndex] = true
	}
	for _, id := range sortedIDs(s.programmed) {
		if _, ok := s.published[id]; !ok && (!held[id] || taken[s.programmed[id].DeviceIndex]) {
			remove = append(remove, id)
		}
	}
	for _, id := range sortedIDs(s.published) {
		if e := s.published[id]; !e.Equal(s.programmed[id]) {
			set = append(set, e)
		}
	}
	return remove, set
}

// programDone takes the result of SetENI: what was programmed, and is still
// published, is assignable from now on.
func (s *Source) programDone(e eni.ENI, err error) {
	s.mu.Lock()
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
	first := !s.usable && len(e.Addresses)+len(e.Prefixes) > 0
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
