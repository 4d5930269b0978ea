// Package nodelocal gives pods that have an address of one IP family only another of
// the other family, which means nothing outside their node: by it they reach the
// world of that family, as their node. It stands before the source of their
// addresses, and hands its own out from memory.
package nodelocal

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/source"
)

// The networks that the addresses are of, by family: 1,024 addresses each. They are
// those that the Amazon VPC CNI has for this, so what is set up on nodes for pods with
// such addresses goes on to fit: link-local ones of IPv4 (RFC 3927), of which EC2 routes
// none, and unique local ones of IPv6 (RFC 4193).
var (
	Network4 = netip.MustParsePrefix("169.254.172.0/22")
	Network6 = netip.MustParsePrefix("fd00::ac:0/118")
)

var networks = [ipfamily.Number]netip.Prefix{ipfamily.IPv4: Network4, ipfamily.IPv6: Network6}

// flags are berthd's that turn them on and off.
var flags = [ipfamily.Number]string{ipfamily.IPv4: "--enable-v4-egress", ipfamily.IPv6: "--enable-v6-egress"}

// Contains tells whether an address is of the networks.
func Contains(a netip.Addr) bool { return Network4.Contains(a) || Network6.Contains(a) }

// ReasonFull is that of an ADD for which no such address is free.
const ReasonFull = "node-local-full"

// group is the name of the addresses in the allocator.
const group = "node"

// Source is a source of addresses whose leases have a node-local one too where they
// are of one family.
type Source struct {
	source.Source
	gives [ipfamily.Number]bool // of which family new leases get one
	clock clock.Clock

	mu    sync.Mutex // guards addrs
	addrs *ipam.Node[attachment.Key]
}

var _ source.Source = (*Source)(nil)

// New wraps a source. ipv4 and ipv6 tell of which families new leases get a node-local
// address; one that is restored keeps what it has.
func New(of source.Source, ipv4, ipv6 bool, clk clock.Clock) *Source {
	s := &Source{Source: of, clock: clk, addrs: ipam.NewNode[attachment.Key](of.CoolingPeriod())}
	s.gives[ipfamily.IPv4], s.gives[ipfamily.IPv6] = ipv4, ipv6
	s.addrs.SetGroup(ipam.Group{ID: group, Prefixes: networks[:]})
	s.addrs.SetReady(group, true)
	return s
}

// Acquire implements source.Source. Node-local addresses cool like others: what a server
// still sends to a pod that is gone must not reach the next one.
func (s *Source) Acquire(ctx context.Context, req source.Request) (source.Lease, error) {
	lease, err := s.Source.Acquire(ctx, req)
	if err != nil {
		return lease, err
	}
	lacks, one := lacking(lease)
	if !one || !s.gives[lacks] {
		return lease, nil
	}
	s.mu.Lock()
	taken, ok := s.addrs.Take(req.Key, lacks.Alone(), s.clock.Now())
	s.mu.Unlock()
	if !ok {
		s.Source.Cancel(req.Key)
		return source.Lease{}, &source.Exhausted{Reason: ReasonFull, Message: fmt.Sprintf(
			"each node-local %s address, of %s, is in use or cools: run fewer pods on the node, or set %s=false",
			lacks, networks[lacks], flags[lacks])}
	}
	lease.NodeLocal = taken.Addresses[lacks]
	return lease, nil
}

// lacking is the family that a lease has no address of, where it has one of the other.
func lacking(l source.Lease) (f ipfamily.Family, one bool) {
	addrs := l.Addrs()
	if len(addrs) != 1 {
		return 0, false
	}
	return ipfamily.Of(addrs[0]).Other(), true
}

// Restore implements source.Source. Of a damaged record, of which only addresses are
// known, a node-local one comes as any other. What of a lease can be held is, also where the
// rest cannot: its record stays.
func (s *Source) Restore(req source.Request, lease source.Lease) error {
	for _, a := range []*netip.Addr{&lease.IPv4, &lease.IPv6} {
		if Contains(*a) {
			lease.NodeLocal, *a = *a, netip.Addr{}
		}
	}
	err := s.hold(req.Key, lease.NodeLocal)
	if lease.Empty() {
		return err
	}
	return errors.Join(err, s.Source.Restore(req, lease))
}

// hold takes over what a record says. An address that is of no network here was given by
// a program with others: nobody else gets it.
func (s *Source) hold(key attachment.Key, addr netip.Addr) error {
	if !addr.IsValid() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addrs.Hold(key, []netip.Addr{addr}, s.clock.Now())
}

// RestoreCooling implements source.Source.
func (s *Source) RestoreCooling(addr netip.Addr, since time.Time) {
	if !Contains(addr) {
		s.Source.RestoreCooling(addr, since)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addrs.Cool(addr, since, s.clock.Now())
}

// Withhold implements source.Source.
func (s *Source) Withhold(addrs []netip.Addr) []netip.Addr {
	kept := s.Source.Withhold(slices.DeleteFunc(slices.Clone(addrs), Contains))
	s.mu.Lock()
	defer s.mu.Unlock()
	return append(kept, s.addrs.Withhold(slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return !Contains(a) }))...)
}

// Release implements source.Source.
func (s *Source) Release(key attachment.Key) {
	s.Source.Release(key)
	s.end(key, true)
}

// Cancel implements source.Source.
func (s *Source) Cancel(key attachment.Key) {
	s.Source.Cancel(key)
	s.end(key, false)
}

// end ends the hold of a key on its node-local address.
func (s *Source) end(key attachment.Key, cools bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cools {
		s.addrs.Release(key, s.clock.Now())
		return
	}
	s.addrs.Cancel(key)
}

// Snapshot implements source.Source. The addresses are not among those that are listed:
// no pod is reached by one.
func (s *Source) Snapshot() source.Snapshot {
	snap := s.Source.Snapshot()
	snap.Detail = source.Details{snap.Detail, s.count()}
	return snap
}

var famAddresses = metric.New("berth_node_local_addresses", "gauge",
	"Node-local addresses, by which pods of one IP family reach the world of the other: those in use, and those that cool. There are 1,024 of each family.", "family", "state")

// Reference is what node-local addresses add to the page of metrics.
var Reference = source.Reference{Families: []metric.Family{famAddresses}}

// counts are addresses in use and cooling, by family.
type counts [ipfamily.Number]struct{ used, cooling int }

// count counts. Cooling that has ended is over.
func (s *Source) count() (n counts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addrs.Expire(s.clock.Now())
	for v := range s.addrs.Busied() {
		if of := &n[ipfamily.Of(v.Addr)]; v.Used {
			of.used++
		} else {
			of.cooling++
		}
	}
	return n
}

// Describe implements source.Detail.
func (counts) Describe(*introspect.Document) {}

// Metrics implements source.Detail.
func (n counts) Metrics() (all []prometheus.Metric) {
	for f, of := range n {
		family := string(ipfamily.Family(f).Alone())
		all = append(all,
			famAddresses.Value(float64(of.used), family, string(source.Used)),
			famAddresses.Value(float64(of.cooling), family, string(source.Cooling)))
	}
	return all
}
