package ipam

import (
	"errors"
	"fmt"

	"github.com/berthnet/berth/internal/ipfamily"
)

// IPv6PrefixAddresses is as how many addresses a delegated IPv6 prefix counts. A
// /80 has 2^48 (EC2 User Guide, "Assigning prefixes to network interfaces"): more
// than a node can run pods, so that one is as good as any number of them.
const IPv6PrefixAddresses = 1 << 16

// PrefixAddresses is the number of addresses in a delegated IPv4 prefix, a /28
// (EC2 User Guide, "Assigning prefixes to network interfaces").
const PrefixAddresses = 16

// Dialect is the vocabulary in which a warm pool is asked for.
type Dialect string

// The two dialects. The empty one is AWS.
const (
	AWS    Dialect = "aws"    // targets of the Amazon VPC CNI (AWS's best practices)
	Cilium Dialect = "cilium" // watermarks of Cilium's AWS ENI allocator
)

// Policy says how many addresses a node should have beyond those in use. All
// counts are of usable addresses: an ENI's primary address is not one.
type Policy struct {
	Dialect Dialect

	// Families are those of which each pod gets an address, all on one ENI. What
	// an ENI has for pods is what it has of the family that it has least of.
	Families ipfamily.Set

	// WarmENI (WARM_ENI_TARGET) is how many whole ENIs' worth of addresses are
	// kept free. With 0, at least one address is. Addresses are taken by whole
	// ENIs. Not looked at when WarmIP or MinimumIP is set, nor with prefixes.
	WarmENI int
	// WarmIP (WARM_IP_TARGET) is how many addresses are kept free; 0: not set.
	WarmIP int
	// MinimumIP (MINIMUM_IP_TARGET) is how many addresses the node has at
	// least, used ones included; 0: not set.
	MinimumIP int
	// WarmPrefix (WARM_PREFIX_TARGET) is how many prefixes' worth of addresses
	// are kept free. With 0, at least one address is. Only with
	// PrefixDelegation, and not looked at when WarmIP or MinimumIP is set.
	WarmPrefix int

	// MinAllocate (min-allocate) is how many addresses the node has at least.
	MinAllocate int
	// PreAllocate (pre-allocate) is how many addresses are kept free.
	PreAllocate int
	// MaxAboveWatermark (max-above-watermark) is how many addresses beyond the
	// watermark may be asked for when some are needed, and are kept.
	MaxAboveWatermark int
	// MaxAllocate (max-allocate) is how many addresses the node has at most; 0: no cap.
	MaxAllocate int

	// MaxENI (MAX_ENI) caps the ENIs that Berth uses, the primary included;
	// 0: the instance type's limit alone.
	MaxENI int
	// FirstInterfaceIndex (first-interface-index) is the lowest device index
	// whose ENI serves pods: 0 includes the primary ENI.
	FirstInterfaceIndex int
	// PrefixDelegation (ENABLE_PREFIX_DELEGATION) takes /28 prefixes instead of
	// single IPv4 addresses, on instance types that have them. IPv6 addresses come
	// as a /80 wherever there are prefixes, as the Amazon VPC CNI has it.
	PrefixDelegation bool
	// MaxPods caps the addresses of the node: more pods than that it never
	// runs. 0: no cap.
	MaxPods int
}

// DefaultAWS returns what the Amazon VPC CNI does when nothing is set.
func DefaultAWS() Policy { return Policy{Dialect: AWS, WarmENI: 1, WarmPrefix: 1} }

// DefaultCilium returns what Cilium's documentation says of parameters that are not set.
func DefaultCilium() Policy {
	return Policy{Dialect: Cilium, PreAllocate: 8, FirstInterfaceIndex: 1}
}

// Usage is what the addresses of a node are doing.
type Usage struct {
	Used    int
	Cooling int
	Waiting int // pods that wait for an address
}

// Demand is a policy's answer, the same for both dialects. The counts are not
// rounded to Unit: what is missing is, when it is asked for.
type Demand struct {
	// Want is how many addresses should be assigned, free, used and cooling
	// together; below it the node grows.
	Want int
	// Request is how many to grow to, once below Want.
	Request int
	// Keep is how many may stay; above it is excess.
	Keep int
	// Unit is what the cloud is asked for: PrefixAddresses, or 1.
	Unit int
	// WholeENIs: addresses come and go by whole ENIs.
	WholeENIs bool
}

// ByPrefix reports whether addresses of a family come by prefixes, on an instance
// type that has them.
func (p Policy) ByPrefix(f ipfamily.Family) bool { return f == ipfamily.IPv6 || p.PrefixDelegation }

// Demand computes what a node should have, in pods. slots is for how many of them
// an ENI holds single addresses; prefixes reports whether the instance type has
// prefixes. Of IPv6 alone a prefix counts as one of IPv4 does towards WarmPrefix:
// a /80 is more than any warm target.
//
// A cooling address is no supply for a pod that waits, so that pods do not
// starve behind it, and is supply for a warm target, as it will be back.
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

// Validate names every field that makes no sense, in the words of its dialect.
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
			errs = append(errs, fmt.Errorf("%s %d: want a number from 0", f.name, f.value))
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
