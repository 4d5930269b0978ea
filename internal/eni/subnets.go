package eni

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/cloud"
)

// SubnetBook is what is known of the free addresses of subnets. One is shared
// by all reconcilers of a process: what one is about to ask for is reserved,
// so that many nodes do not herd onto the same subnet.
type SubnetBook struct {
	api cloud.API
	mu  sync.Mutex // guards the entries; memory only
	all map[string]*subnetEntry
}

type subnetEntry struct {
	cloud.Subnet
	asOf      time.Time // when the cloud told Free
	reserved  int       // asked for by calls under way
	fullUntil time.Time // refused although the count had room
	refusals  int       // in a row
	noPrefix  time.Time // until when prefixes are not asked for
}

// NewSubnetBook returns an empty book.
func NewSubnetBook(api cloud.API) *SubnetBook {
	return &SubnetBook{api: api, all: map[string]*subnetEntry{}}
}

// Refresh describes the subnets that match and takes their free counts. No
// lock is held during the call.
func (b *SubnetBook) Refresh(ctx context.Context, f cloud.SubnetFilter, now time.Time) error {
	list, err := b.api.Subnets(ctx, f)
	if err != nil {
		return fmt.Errorf("describe subnets: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	listed := map[string]bool{}
	for _, s := range list {
		e, ok := b.all[s.ID]
		if !ok {
			e = &subnetEntry{}
			b.all[s.ID] = e
		}
		e.Subnet, e.asOf = s, now
		listed[s.ID] = true
	}
	for id, e := range b.all {
		if !listed[id] && selects(f, e.Subnet) {
			e.Free = 0 // deleted, or no longer meant
		}
	}
	return nil
}

// selects tells whether a filter names a subnet, as it was last described.
func selects(f cloud.SubnetFilter, s cloud.Subnet) bool {
	for k, v := range f.Tags {
		if s.Tags[k] != v {
			return false
		}
	}
	return (len(f.IDs) == 0 || slices.Contains(f.IDs, s.ID)) && (f.VPCID == "" || f.VPCID == s.VPCID) && (f.Zone == "" || f.Zone == s.Zone)
}

// CIDR is a subnet's IPv4 block, if known.
func (b *SubnetBook) CIDR(id string) (netip.Prefix, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, ok := b.all[id]
	if !ok {
		return netip.Prefix{}, false
	}
	return e.CIDR, true
}

// Learn remembers a subnet's block without a free count, as an inventory told.
func (b *SubnetBook) Learn(id string, cidr netip.Prefix) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.all[id]; !ok && cidr.IsValid() {
		b.all[id] = &subnetEntry{Subnet: cloud.Subnet{ID: id, CIDR: cidr, Free: Unlimited}}
	}
}

// States lists the subnets as a plan sees them; forNew picks those where new
// ENIs may be made.
func (b *SubnetBook) States(now time.Time, forNew func(cloud.Subnet) bool) []SubnetState {
	b.mu.Lock()
	defer b.mu.Unlock()
	entries := slices.SortedFunc(maps.Values(b.all), func(x, y *subnetEntry) int { return cmp.Compare(x.ID, y.ID) })
	out := make([]SubnetState, len(entries))
	for i, e := range entries {
		out[i] = SubnetState{ID: e.ID, Free: max(0, e.Free-e.reserved), NoPrefix: e.noPrefix.After(now), ForNew: forNew(e.Subnet)}
		if e.fullUntil.After(now) {
			out[i].Free = 0
		}
	}
	return out
}

// reserve sets n addresses of a subnet apart for a call; the returned function
// ends that, with how many the call took.
func (b *SubnetBook) reserve(id string, n int) func(took int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, ok := b.all[id]
	if !ok {
		return func(int) {}
	}
	e.reserved += n
	return func(took int) {
		b.mu.Lock()
		defer b.mu.Unlock()
		e.reserved -= n
		if e.Free != Unlimited {
			e.Free = max(0, e.Free-took)
		}
		if took > 0 {
			e.refusals = 0
		}
	}
}

// returned counts addresses that went back to a subnet.
func (b *SubnetBook) returned(id string, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e, ok := b.all[id]; ok && e.Free != Unlimited {
		e.Free += n
	}
}

// refusedPrefix remembers that a subnet had no free aligned prefix.
func (b *SubnetBook) refusedPrefix(id string, until time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.entry(id).noPrefix = until
}

// refused remembers that a subnet had fewer than n addresses free at now. When
// its count said so little already or is not known, it counts as full for a while that
// doubles with each refusal, from 15 s to 5 min; and the count is asked for
// again.
func (b *SubnetBook) refused(id string, n int, now time.Time) (again time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entry(id)
	e.asOf = time.Time{}
	if e.refusals++; e.refusals > 1 {
		e.fullUntil = now.Add(min(5*time.Minute, 15*time.Second<<min(e.refusals-2, 8)))
		return e.fullUntil
	}
	e.Free = min(e.Free, max(0, n-1))
	return now
}

func (b *SubnetBook) entry(id string) *subnetEntry {
	e, ok := b.all[id]
	if !ok {
		e = &subnetEntry{Subnet: cloud.Subnet{ID: id, Free: Unlimited}}
		b.all[id] = e
	}
	return e
}
