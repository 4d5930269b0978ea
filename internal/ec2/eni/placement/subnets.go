package placement

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
)

// Subnets keeps the blocks of subnets and counts their free addresses. All reconcilers of a process share one: each
// reserves the addresses that it is about to request, so that they do not all choose the same subnet and fail. Its
// methods may be called concurrently.
type Subnets struct {
	api   cloud.API
	asked *cache[struct{}] // by VPC and IDs
	mu    sync.Mutex       // guards the entries; never held during a call
	all   map[string]*subnetEntry
	order []string // keys of all, sorted
}

type subnetEntry struct {
	cloud.Subnet
	asOf      time.Time // when Free was requested, or corrected by a refusal
	taken     int       // addresses taken by all calls so far
	reserved  int       // addresses reserved by calls in flight
	fullUntil time.Time // refused despite free addresses
	refusals  int       // refusals in a row
	noPrefix  time.Time // no /28 prefixes are requested until then
	noIPv6    time.Time // no IPv6 addresses or prefixes are requested until then
	described bool      // by EC2, so a block that is not known does not exist
	gone      bool      // missing in the last description
}

func newSubnets(api cloud.API, c clock.Clock) *Subnets {
	return &Subnets{api: api, asked: newCache[struct{}](c, time.Minute, 0), all: map[string]*subnetEntry{}}
}

// RefreshSince is Refresh, unless a refresh for any node was made at since or later. It returns the time of the last
// refresh.
func (b *Subnets) RefreshSince(ctx context.Context, f cloud.SubnetFilter, since time.Time) (time.Time, error) {
	a, err := b.asked.ask(ctx, fmt.Sprint(f.VPCID, f.IDs), since, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, b.Refresh(ctx, f, b.asked.clock.Now())
	})
	return a.at, err
}

// Refresh describes the matching subnets and records their free counts, requested at now. Replies and refusals since
// then take precedence. No lock is held during the call.
func (b *Subnets) Refresh(ctx context.Context, f cloud.SubnetFilter, now time.Time) error {
	before := b.takenSoFar()
	list, err := b.api.Subnets(ctx, f)
	if err != nil {
		return fmt.Errorf("describe subnets: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	listed := map[string]bool{}
	for _, s := range list {
		e := b.entry(s.ID)
		listed[s.ID] = true
		if !e.asOf.After(now) { // otherwise a later reply overtook this one
			if e.CIDR.IsValid() && !s.IPv6Native { // a subnet keeps its block for life
				s.CIDR = e.CIDR
			}
			e.Subnet, e.asOf, e.described, e.gone = s, now, true, false
			e.Free = max(0, s.Free-(e.taken-before[s.ID])) // the count may be older than some of the calls; the next one corrects that
		}
	}
	for id, e := range b.all {
		if !listed[id] && selects(f, e.Subnet) && !e.asOf.After(now) {
			e.Free, e.asOf, e.gone = 0, now, true
		}
	}
	return nil
}

// takenSoFar returns how many addresses calls have taken from each subnet.
func (b *Subnets) takenSoFar() map[string]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make(map[string]int, len(b.all))
	for id, e := range b.all {
		out[id] = e.taken
	}
	return out
}

// selects reports whether a filter matches a subnet, as last described.
func selects(f cloud.SubnetFilter, s cloud.Subnet) bool {
	return plan.HasTags(s, f.Tags) && (len(f.IDs) == 0 || slices.Contains(f.IDs, s.ID)) && (f.VPCID == "" || f.VPCID == s.VPCID) && (f.Zone == "" || f.Zone == s.Zone)
}

// Blocks returns a subnet's known blocks of both families.
func (b *Subnets) Blocks(id string) []netip.Prefix {
	s := b.BlocksWith(id, netip.Addr{})
	if !s.CIDR.IsValid() {
		return s.IPv6
	}
	return append([]netip.Prefix{s.CIDR}, s.IPv6...)
}

// BlocksWith returns a subnet with its known blocks, for one of its ENIs with the IPv4 address a, if valid. An IPv4
// block without that address cannot be right: it is dropped until EC2 describes another.
func (b *Subnets) BlocksWith(id string, a netip.Addr) cloud.Subnet {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, ok := b.all[id]
	if !ok {
		return cloud.Subnet{}
	}
	if a.IsValid() && e.CIDR.IsValid() && !e.CIDR.Contains(a) {
		e.CIDR = netip.Prefix{}
	}
	return e.Subnet
}

// described returns a subnet as EC2 last described it; false if it did not.
func (b *Subnets) described(id string) (s cloud.Subnet, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, ok := b.all[id]
	if !ok || !e.described {
		return s, false
	}
	return e.Subnet, true
}

// Learn adds the blocks of an unknown subnet from a stored inventory. Its free count stays unknown.
func (b *Subnets) Learn(s cloud.Subnet) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.all[s.ID]; !ok && (s.CIDR.IsValid() || s.IPv6Native) {
		e := b.entry(s.ID)
		e.CIDR, e.IPv6, e.IPv6Native = s.CIDR, s.IPv6, s.IPv6Native
	}
}

// Native reports whether a subnet is known to be IPv6-only.
func (b *Subnets) Native(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, ok := b.all[id]
	return ok && e.IPv6Native
}

// states lists the subnets relevant to a node in the form for plans, by ID. b.mu is held.
func (b *Subnets) states(now time.Time, relevant []string, forNew plan.Candidates) []plan.Subnet {
	var out []plan.Subnet
	for _, id := range b.order {
		e := b.all[id]
		fit := forNew.Has(e.Subnet)
		if !fit && !slices.Contains(relevant, id) {
			continue
		}
		s := plan.Subnet{
			ID: id, Free: max(0, e.Free-e.reserved), IPv6Native: e.IPv6Native, ForNew: fit,
			NoPrefix: e.noPrefix.After(now), NoIPv6: e.noIPv6.After(now) || e.described && len(e.IPv6) == 0 || e.gone && e.IPv6Native,
		}
		if e.fullUntil.After(now) {
			s.Free = 0
		}
		out = append(out, s)
	}
	return out
}

// choose lets pick choose an action and its subnet, and reserves the required addresses before another node can
// choose. An empty subnet reserves nothing, and the result is nil. Pick must not make calls.
func (b *Subnets) choose(now time.Time, relevant []string, forNew plan.Candidates, pick func([]plan.Subnet) (plan.Action, string)) *Reservation {
	b.mu.Lock()
	defer b.mu.Unlock()
	a, subnet := pick(b.states(now, relevant, forNew))
	if subnet == "" {
		return nil
	}
	b.entry(subnet).reserved += a.Weight()
	return &Reservation{of: b, subnet: subnet, n: a.Weight(), action: a}
}

// Reservation reserves a number of addresses of a subnet for a call. A nil Reservation reserves nothing.
type Reservation struct {
	of     *Subnets
	subnet string
	n      int
	action plan.Action
	ended  bool
}

// Reserve reserves a number of addresses.
func (b *Subnets) Reserve(subnet string, n int) *Reservation {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.entry(subnet).reserved += n
	return &Reservation{of: b, subnet: subnet, n: n}
}

// IsFor reports whether the reservation is for an action.
func (h *Reservation) IsFor(a plan.Action) bool { return h != nil && h.action == a }

// End ends the reservation, with the number of addresses that the call took. Only the first End counts.
func (h *Reservation) End(took int) {
	if h == nil {
		return
	}
	h.of.mu.Lock()
	defer h.of.mu.Unlock()
	if h.ended {
		return
	}
	h.ended = true
	e := h.of.entry(h.subnet)
	e.reserved -= h.n
	e.taken += took
	if e.Free != plan.Unlimited {
		e.Free = max(0, e.Free-took)
	}
	if took > 0 {
		e.refusals = 0
	}
}

// Free lists the subnets that EC2 described, by ID, each with its free addresses minus those reserved. IPv6-only
// subnets are left out, because EC2 does not count their addresses.
func (b *Subnets) Free() []cloud.Subnet {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []cloud.Subnet
	for _, id := range b.order {
		if e := b.all[id]; e.Free != plan.Unlimited && !e.IPv6Native {
			s := e.Subnet
			s.Free = max(0, e.Free-e.reserved)
			out = append(out, s)
		}
	}
	return out
}

// Returned counts addresses that were released to a subnet.
func (b *Subnets) Returned(id string, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e, ok := b.all[id]; ok && e.Free != plan.Unlimited && !e.IPv6Native {
		e.Free += n
	}
}

// refusedPrefix records that a subnet has no free aligned /28.
func (b *Subnets) refusedPrefix(id string, until time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.entry(id).noPrefix = until
}

// refusedIPv6 records that a subnet has no free IPv6 address or /80.
func (b *Subnets) refusedIPv6(id string, until time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.entry(id).noIPv6 = until
}

// refused records that a subnet had fewer than n free addresses at now. From the second refusal in a row, it counts
// as full for a time that doubles from 15 s to 5 min. It returns when to fetch the count again.
func (b *Subnets) refused(id string, n int, now time.Time) (again time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entry(id)
	e.asOf = now
	if e.refusals++; e.refusals > 1 {
		e.fullUntil = now.Add(min(5*time.Minute, 15*time.Second<<min(e.refusals-2, 8)))
		return e.fullUntil
	}
	e.Free = min(e.Free, max(0, n-1))
	return now
}

func (b *Subnets) entry(id string) *subnetEntry {
	e, ok := b.all[id]
	if !ok {
		e = &subnetEntry{Subnet: cloud.Subnet{ID: id, Free: plan.Unlimited}}
		b.all[id] = e
		i, _ := slices.BinarySearch(b.order, id)
		b.order = slices.Insert(b.order, i, id)
	}
	return e
}
