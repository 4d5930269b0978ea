// Package nodelocal gives pods that have an address of one IP family only a second address, of the other family, that is
// valid only on their node. With it they reach networks of that family under their node's address. It wraps the source of
// the pods' other addresses.
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

// The networks of the addresses, by family: 1,024 addresses each. The Amazon VPC CNI uses the same ones, so that other
// configuration of nodes for such addresses stays valid: link-local addresses of IPv4 (RFC 3927), which EC2 does not
// route, and unique local addresses of IPv6 (RFC 4193).
var (
	Network4 = netip.MustParsePrefix("169.254.172.0/22")
	Network6 = netip.MustParsePrefix("fd00::ac:0/118")
)

var networks = [ipfamily.Number]netip.Prefix{ipfamily.IPv4: Network4, ipfamily.IPv6: Network6}

// flags are berthd's flags for the families.
var flags = [ipfamily.Number]string{ipfamily.IPv4: "--enable-v4-egress", ipfamily.IPv6: "--enable-v6-egress"}

// Contains reports whether an address is node-local.
func Contains(a netip.Addr) bool { return Network4.Contains(a) || Network6.Contains(a) }

// ReasonFull is the reason of an ADD for which no node-local address is free.
const ReasonFull = "node-local-full"

// group is the name of the addresses in the allocator.
const group = "node"

// Source is an address source whose leases of one family have a node-local address as well.
type Source struct {
	source.Source
	gives [ipfamily.Number]bool // the families of which new leases get one
	clock clock.Clock

	mu    sync.Mutex // guards addrs
	addrs *ipam.Node[attachment.Key]
}

var _ source.Source = (*Source)(nil)

// New wraps a source. ipv4 and ipv6 are the families of which new leases get a node-local address. Restored leases keep
// theirs.
func New(of source.Source, ipv4, ipv6 bool, clk clock.Clock) *Source {
	s := &Source{Source: of, clock: clk, addrs: ipam.NewNode[attachment.Key](of.CoolingPeriod())}
	s.gives[ipfamily.IPv4], s.gives[ipfamily.IPv6] = ipv4, ipv6
	s.addrs.SetGroup(ipam.Group{ID: group, Prefixes: networks[:]})
	s.addrs.SetReady(group, true)
	return s
}

// Acquire implements source.Source. Node-local addresses cool like others: packets to a pod that ended must not reach the
// next one.
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
			"all node-local %s addresses, of %s, are in use or cooling: run fewer pods on the node, or set %s=false",
			lacks, networks[lacks], flags[lacks])}
	}
	lease.NodeLocal = taken.Addresses[lacks]
	return lease, nil
}

// lacking returns the family of which a lease with one address has none.
func lacking(l source.Lease) (f ipfamily.Family, one bool) {
	addrs := l.Addrs()
	if len(addrs) != 1 {
		return 0, false
	}
	return ipfamily.Of(addrs[0]).Other(), true
}

// Restore implements source.Source. A damaged record, of which only the addresses are known, has a node-local address in
// place of any other. If one part of a lease cannot be taken over, the other part is.
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

// hold takes over the address of a record, also one outside the networks, of a version with other networks.
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

// end ends the lease of a node-local address.
func (s *Source) end(key attachment.Key, cools bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cools {
		s.addrs.Release(key, s.clock.Now())
		return
	}
	s.addrs.Cancel(key)
}

// Snapshot implements source.Source. It does not list node-local addresses, as no pod is reached by one.
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

// count counts addresses.
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
