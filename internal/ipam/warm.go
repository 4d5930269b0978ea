package ipam

import (
	"errors"
	"fmt"

	"github.com/berthnet/berth/internal/ipfamily"
)

// IPv6PrefixAddresses is the number of addresses that a delegated IPv6 prefix counts as. A /80 has 2^48
// (EC2 User Guide, "Assigning prefixes to network interfaces"), more than a node can run pods, so one
// is as good as any number of them.
const IPv6PrefixAddresses = 1 << 16

// PrefixAddresses is the number of addresses in a delegated IPv4 prefix, a /28 (EC2 User Guide,
// "Assigning prefixes to network interfaces").
const PrefixAddresses = 16

// Dialect is the set of parameters that a warm pool is configured with.
type Dialect string

// The two dialects. The empty one is AWS.
const (
	AWS    Dialect = "aws"    // targets of the Amazon VPC CNI (AWS's best practices)
	Cilium Dialect = "cilium" // watermarks of Cilium's AWS ENI allocator
)

// Policy defines how many addresses a node keeps beyond those in use. All counts are of usable
// addresses: an ENI's primary address is not one.
type Policy struct {
	Dialect Dialect

	// Families are the families that each pod gets an address of, both on the same ENI. The pods that
	// an ENI can serve are limited by the family with fewer addresses.
	Families ipfamily.Set

	// WarmENI (WARM_ENI_TARGET) is the number of free addresses to keep,
	// in whole ENIs; at least one address is kept. Addresses are assigned by
	// whole ENIs. It is ignored when WarmIP or MinimumIP is set, and with prefixes.
	WarmENI int
	// WarmIP (WARM_IP_TARGET) is the number of free addresses to keep; 0: not set.
	WarmIP int
	// MinimumIP (MINIMUM_IP_TARGET) is the minimum number of addresses of the
	// node, used ones included; 0: not set.
	MinimumIP int
	// WarmPrefix (WARM_PREFIX_TARGET) is the number of free addresses to keep,
	// in whole prefixes; at least one address is kept. It needs
	// PrefixDelegation, and is ignored when WarmIP or MinimumIP is set.
	WarmPrefix int

	// MinAllocate (min-allocate) is the minimum number of addresses of the node.
	MinAllocate int
	// PreAllocate (pre-allocate) is the number of free addresses to keep.
	PreAllocate int
	// MaxAboveWatermark (max-above-watermark) is the number of addresses beyond
	// the watermark that may be requested when some are needed, and are kept.
	MaxAboveWatermark int
	// MaxAllocate (max-allocate) is the maximum number of addresses of the node; 0: no cap.
	MaxAllocate int

	// MaxENI (MAX_ENI) caps the ENIs that Berth uses, the primary included;
	// 0: only the instance type's limit applies.
	MaxENI int
	// FirstInterfaceIndex (first-interface-index) is the lowest device index
	// whose ENI serves pods: 0 includes the primary ENI.
	FirstInterfaceIndex int
	// PrefixDelegation (ENABLE_PREFIX_DELEGATION) takes /28 prefixes instead of
	// single IPv4 addresses, on instance types that have them. IPv6 addresses come
	// as a /80 wherever there are prefixes, as with the Amazon VPC CNI.
	PrefixDelegation bool
	// MaxPods caps the addresses of the node: it never runs more pods than
	// that. 0: no cap.
	MaxPods int
}

// DefaultAWS returns the policy of the Amazon VPC CNI when nothing is set.
func DefaultAWS() Policy { return Policy{Dialect: AWS, WarmENI: 1, WarmPrefix: 1} }

// DefaultCilium returns the policy of Cilium's documentation when nothing is set.
func DefaultCilium() Policy {
	return Policy{Dialect: Cilium, PreAllocate: 8, FirstInterfaceIndex: 1}
}

// Usage counts the addresses of a node by state.
type Usage struct {
	Used    int
	Cooling int
	Waiting int // pods that wait for an address
}

// Demand is the result of a policy, in the same terms for both dialects. The counts are not rounded to
// Unit; the missing addresses are rounded when they are requested.
type Demand struct {
	// Want is the number of addresses that should be assigned, free, used and cooling
	// together; with fewer the node grows.
	Want int
	// Request is the number to grow to, once below Want.
	Request int
	// Keep is the most addresses that may stay; those above are excess.
	Keep int
	// Unit is the granularity of requests to the cloud: PrefixAddresses, or 1.
	Unit int
	// WholeENIs: addresses are assigned and released by whole ENIs.
	WholeENIs bool
}

// ByPrefix reports whether addresses of a family come as prefixes, on an instance type that has them.
func (p Policy) ByPrefix(f ipfamily.Family) bool { return f == ipfamily.IPv6 || p.PrefixDelegation }

// Demand returns the addresses that a node should have, in pods. Slots is the number of pods that an ENI
// can hold single addresses for; prefixes says whether the instance type supports prefixes. With IPv6 only,
// a prefix counts towards WarmPrefix as an IPv4 one does, since a /80 exceeds any warm target.
//
// A cooling address does not count as supply for a waiting pod, which would otherwise starve, but counts
// for a warm target, since it will be free soon.
func (p Policy) Demand(slots int, prefixes bool, u Usage) Demand {
	d := Demand{Unit: 1}
	if prefixes && p.ByPrefix(p.Families.Families()[0]) {
		d.Unit = PrefixAddresses
	}
	busy := u.Used + u.Waiting
	switch {
	case p.Dialect == Cilium:
		d.Want = max(p.MinAllocate, busy+p.PreAllocate)
		d.Request = d.Want + p.MaxAboveWatermark
	case p.WarmIP > 0 || p.MinimumIP > 0:
		d.Want = max(p.MinimumIP, busy+p.WarmIP)
	case d.Unit > 1:
		d.Want = busy + max(1, p.WarmPrefix*d.Unit)
	default:
		d.WholeENIs = true
		d.Want = wholeENIs(busy+max(1, p.WarmENI*slots), slots)
	}
	if u.Waiting > 0 {
		d.Want = max(d.Want, busy+u.Cooling)
	}
	d.Want = p.capped(d.Want)
	d.Request = p.capped(max(d.Want, d.Request))
	d.Keep = d.Request
	return d
}

func (p Policy) capped(n int) int {
	for _, c := range [...]int{p.MaxPods, p.MaxAllocate} {
		if c > 0 {
			n = min(n, c)
		}
	}
	return n
}

func wholeENIs(n, slots int) int {
	if slots <= 0 {
		return n
	}
	return (n + slots - 1) / slots * slots
}

// Validate returns an error that names every invalid field by its name in the dialect.
func (p Policy) Validate() error {
	var errs []error
	if p.Dialect != "" && p.Dialect != AWS && p.Dialect != Cilium {
		errs = append(errs, fmt.Errorf("dialect %q: want %q or %q", p.Dialect, AWS, Cilium))
	}
	for _, f := range []struct {
		name  string
		value int
	}{
		{"WARM_ENI_TARGET", p.WarmENI}, {"WARM_IP_TARGET", p.WarmIP}, {"MINIMUM_IP_TARGET", p.MinimumIP},
		{"WARM_PREFIX_TARGET", p.WarmPrefix}, {"MAX_ENI", p.MaxENI}, {"min-allocate", p.MinAllocate},
		{"pre-allocate", p.PreAllocate}, {"max-above-watermark", p.MaxAboveWatermark},
		{"max-allocate", p.MaxAllocate}, {"first-interface-index", p.FirstInterfaceIndex}, {"max-pods", p.MaxPods},
	} {
		if f.value < 0 {
			errs = append(errs, fmt.Errorf("%s %d: want at least 0", f.name, f.value))
		}
	}
	if p.MaxAllocate > 0 && p.MinAllocate > p.MaxAllocate {
		errs = append(errs, fmt.Errorf("min-allocate %d: want at most max-allocate, which is %d", p.MinAllocate, p.MaxAllocate))
	}
	return errors.Join(errs...)
}

// Uncapped returns the policy without its caps on addresses.
func (p Policy) Uncapped() Policy {
	p.MaxPods, p.MaxAllocate = 0, 0
	return p
}

// Cap returns the most addresses that the policy lets a node have; 0: no cap.
func (p Policy) Cap() int {
	n := p.capped(1 << 30)
	if n == 1<<30 {
		return 0
	}
	return n
}
