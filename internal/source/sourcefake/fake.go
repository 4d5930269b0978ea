// Package sourcefake is a source.Source in memory, for tests of its users.
package sourcefake

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/source"
)

// Source assigns the given addresses, longest free first, and cools released ones.
type Source struct {
	// Wants is the result of Annotations, and Refuses that of CheckOptions. Both must be set before the source is used.
	Wants   []string
	Refuses func(source.PodOptions) error
	// OfNode is the result of NodeAddresses.
	OfNode []netip.Addr
	// Nothing makes leases have no address.
	Nothing bool

	clock  clock.Clock
	period time.Duration
	kicks  atomic.Int64

	mu      sync.Mutex // guards the fields below
	free    []netip.Addr
	nodeHas []netip.Addr
	cooling []cooled // ordered by since
	held    map[attachment.Key]source.Lease
	waiting []chan struct{}
	ready   bool
	reason  string // reason of Exhausted errors
	eni     string
	cancels int
	wish    source.PodOptions
}

const none = "the fake source has no free address"

type cooled struct {
	addr  netip.Addr
	since time.Time
}

var _ source.Source = (*Source)(nil)

// New returns a source of these addresses with a cooling period, measured by clk.
func New(clk clock.Clock, period time.Duration, addrs ...netip.Addr) *Source {
	return &Source{
		clock: clk, period: period, free: slices.Clone(addrs), held: map[attachment.Key]source.Lease{},
		ready: len(addrs) > 0, reason: "subnet-full", eni: "eni-fake",
	}
}

// Annotations implements source.Source.
func (s *Source) Annotations() []string { return s.Wants }

// CheckOptions implements source.Source.
func (s *Source) CheckOptions(w source.PodOptions) error {
	if s.Refuses == nil {
		return nil
	}
	return s.Refuses(w)
}

// Wish returns the options of the last Acquire.
func (s *Source) Wish() source.PodOptions {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wish
}

// Kick implements source.Source.
func (s *Source) Kick() { s.kicks.Add(1) }

// Kicks returns the number of calls of Kick.
func (s *Source) Kicks() int { return int(s.kicks.Load()) }

// Supply adds warm addresses and serves waiting Acquires.
func (s *Source) Supply(addrs ...netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, addrs...)
	s.ready = s.ready || len(addrs) > 0
	s.notify()
}

// Drain removes the free addresses.
func (s *Source) Drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = nil
}

// notify makes every waiter check again. s.mu is held.
func (s *Source) notify() {
	for _, w := range s.waiting {
		close(w)
	}
	s.waiting = nil
}

// Restore implements source.Source.
func (s *Source) Restore(req source.Request, lease source.Lease) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range lease.Addrs() {
		for other, l := range s.held {
			if other != req.Key && slices.Contains(l.Addrs(), a) {
				return fmt.Errorf("address %s is held by %s", a, other)
			}
		}
	}
	for _, a := range lease.Addrs() {
		s.free = slices.DeleteFunc(s.free, func(f netip.Addr) bool { return f == a })
	}
	s.held[req.Key] = lease
	s.ready = true
	return nil
}

// RestoreCooling implements source.Source.
func (s *Source) RestoreCooling(addr netip.Addr, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = slices.DeleteFunc(s.free, func(f netip.Addr) bool { return f == addr })
	s.cool(addr, since)
}

// cool keeps the list sorted. s.mu is held.
func (s *Source) cool(addr netip.Addr, since time.Time) {
	s.cooling = append(s.cooling, cooled{addr, since})
	slices.SortStableFunc(s.cooling, func(a, b cooled) int { return a.since.Compare(b.since) })
}

// Withhold implements source.Source.
func (s *Source) Withhold(addrs []netip.Addr) (kept []netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodeHas = slices.Clone(addrs)
	s.notify()
	for _, a := range addrs {
		if slices.Contains(s.free, a) {
			kept = append(kept, a)
		}
	}
	return kept
}

// NodeAddresses implements source.Source.
func (s *Source) NodeAddresses() []netip.Addr { return s.OfNode }

// Run implements source.Source. Only Supply adds addresses.
func (s *Source) Run(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// Acquire implements source.Source for IPv4 or IPv6 addresses, one per lease.
func (s *Source) Acquire(ctx context.Context, req source.Request) (source.Lease, error) {
	s.mu.Lock()
	s.wish = req.Options
	s.mu.Unlock()
	if s.Nothing {
		return source.Lease{}, nil
	}
	for {
		lease, ok, changed, next := s.try(req.Key)
		if ok {
			return lease, nil
		}
		select {
		case <-changed:
		case <-next:
		case <-ctx.Done():
			s.mu.Lock()
			s.waiting = slices.DeleteFunc(s.waiting, func(w chan struct{}) bool { return w == changed })
			s.mu.Unlock()
			return source.Lease{}, &source.Exhausted{Reason: s.reason, Message: none, Err: ctx.Err()}
		}
	}
}

// Why implements source.Source.
func (s *Source) Why(key attachment.Key) *source.Exhausted {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, held := s.held[key]; held || len(s.waiting) == 0 {
		return nil
	}
	return &source.Exhausted{Reason: s.reason, Message: none}
}

// try takes an address or joins the waiters; next fires when one has cooled.
func (s *Source) try(key attachment.Key) (lease source.Lease, ok bool, changed chan struct{}, next <-chan time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l, held := s.held[key]; held {
		return l, true, nil, nil
	}
	s.warm()
	if i := slices.IndexFunc(s.free, func(a netip.Addr) bool { return !slices.Contains(s.nodeHas, a) }); i >= 0 {
		a := s.free[i]
		s.free = slices.Delete(s.free, i, i+1)
		l := source.Lease{Origin: introspect.Origin{ENI: s.eni}}
		if a.Is4() {
			l.IPv4 = a
		} else {
			l.IPv6 = a
		}
		s.held[key] = l
		return l, true, nil, nil
	}
	if len(s.cooling) > 0 {
		next = s.clock.After(s.cooling[0].since.Add(s.period).Sub(s.clock.Now()))
	}
	changed = make(chan struct{})
	s.waiting = append(s.waiting, changed)
	return lease, false, changed, next
}

// warm moves cooled addresses to the free list. s.mu is held.
func (s *Source) warm() {
	now := s.clock.Now()
	for len(s.cooling) > 0 && !now.Before(s.cooling[0].since.Add(s.period)) {
		s.free = append(s.free, s.cooling[0].addr)
		s.cooling = s.cooling[1:]
	}
}

// Release implements source.Source.
func (s *Source) Release(key attachment.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	for _, a := range s.held[key].Addrs() {
		s.cool(a, now)
	}
	delete(s.held, key)
	s.notify()
}

// Cancel implements source.Source.
func (s *Source) Cancel(key attachment.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l, ok := s.held[key]; ok {
		s.free = append(l.Addrs(), s.free...)
		s.cancels++
	}
	delete(s.held, key)
	s.notify()
}

// CoolingPeriod implements source.Source.
func (s *Source) CoolingPeriod() time.Duration { return s.period }

// Ready implements source.Source.
func (s *Source) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ready {
		return fmt.Errorf("the fake source never had an address")
	}
	return nil
}

// Snapshot implements source.Source.
func (s *Source) Snapshot() source.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.warm()
	snap := source.Snapshot{Waiting: len(s.waiting), Groups: []source.Group{{Name: s.eni, Capacity: len(s.free) + len(s.cooling) + len(s.held)}}}
	add := func(a netip.Addr, st source.State, key *attachment.Key, since time.Time) {
		snap.Addresses = append(snap.Addresses, source.AddressInfo{Addr: a, State: st, Origin: introspect.Origin{ENI: s.eni}, Key: key, Since: since})
	}
	for _, a := range s.free {
		add(a, source.Warm, nil, time.Time{})
	}
	for _, c := range s.cooling {
		add(c.addr, source.Cooling, nil, c.since)
	}
	for k, l := range s.held {
		for _, a := range l.Addrs() {
			add(a, source.Used, &k, time.Time{})
		}
	}
	slices.SortFunc(snap.Addresses, func(a, b source.AddressInfo) int { return a.Addr.Compare(b.Addr) })
	snap.Count = source.Count(snap.Addresses)
	snap.Detail = detail{ID: s.eni, Primary: true, Ready: true, Capacity: snap.Groups[0].Capacity, Used: len(s.held)}
	return snap
}

var famENIs = metric.New("berth_enis", "gauge", "ENIs of the fake.")

// Reference has the metrics of the fake.
var Reference = source.Reference{Families: []metric.Family{famENIs}}

// detail is the only ENI, which has all addresses.
type detail introspect.ENI

// Describe implements source.Detail.
func (d detail) Describe(doc *introspect.Document) { doc.ENIs = append(doc.ENIs, introspect.ENI(d)) }

// Metrics implements source.Detail.
func (d detail) Metrics() []prometheus.Metric {
	return []prometheus.Metric{famENIs.Value(1)}
}

// Holder returns the holder of addr.
func (s *Source) Holder(addr netip.Addr) (attachment.Key, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, l := range s.held {
		if slices.Contains(l.Addrs(), addr) {
			return k, true
		}
	}
	return attachment.Key{}, false
}

// Waiting returns the number of waiting Acquires.
func (s *Source) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting)
}

// Cancels returns the number of leases that were cancelled without cooling.
func (s *Source) Cancels() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cancels
}
