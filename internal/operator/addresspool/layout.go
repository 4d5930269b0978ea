package addresspool

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipam/block"
)

// layout returns the layout of the first n subnets of a pool, which must have at least n.
func layout(p *v1alpha1.AddressPool, n int) (block.Layout, error) {
	if n == 0 {
		return block.Layout{}, nil
	}
	subnets, err := subnets(p, n)
	if err != nil {
		return block.Layout{}, err
	}
	return block.Parse(blockSizeBits(p), subnets)
}

func blockSizeBits(p *v1alpha1.AddressPool) int {
	if p.Spec.BlockSizeBits == nil {
		return v1alpha1.DefaultBlockSizeBits
	}
	return int(*p.Spec.BlockSizeBits)
}

func subnets(p *v1alpha1.AddressPool, n int) (out []block.Subnet, err error) {
	var errs []error
	parse := func(field, text string) netip.Prefix {
		if text == "" {
			return netip.Prefix{}
		}
		c, err := netip.ParsePrefix(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", field, err))
		}
		return c
	}
	for i, s := range p.Spec.Subnets[:n] {
		out = append(out, block.Subnet{
			IPv4: parse(fmt.Sprintf("subnets[%d].ipv4", i), s.IPv4), IPv6: parse(fmt.Sprintf("subnets[%d].ipv6", i), s.IPv6),
		})
	}
	return out, errors.Join(errs...)
}

// accepted returns the number of accepted subnets in a pool's status, within the bounds of its spec.
func accepted(p *v1alpha1.AddressPool) int {
	return min(max(int(p.Status.AcceptedSubnets), 0), len(p.Spec.Subnets))
}

// ownedRange is an address range and its owner.
type ownedRange struct {
	netip.Prefix
	owner string // name of the pool, if a pool has it
	block string // name of the block, if a block without a pool has it
	other string // any other owner, such as "Node node-2"
}

func (h ownedRange) String() string {
	switch {
	case h.other != "" && h.IsSingleIP():
		return fmt.Sprintf("%s of %s", h.Addr(), h.other)
	case h.other != "":
		return fmt.Sprintf("%s of %s", h.Prefix, h.other)
	}
	if h.block != "" {
		return fmt.Sprintf("%s of block %s, which still exists", h.Prefix, h.block)
	}
	return fmt.Sprintf("%s of pool %s", h.Prefix, h.owner)
}

// decide returns how many subnets of the named pool may be cut, and why no more. Pools are served
// in order of age. A pool keeps its accepted subnets, and gets the next one if that overlaps no
// subnet that another pool has or was just granted, and nothing in others: addresses of Services
// and of blocks without a pool. A pool being deleted gets no further subnets.
func decide(name string, pools []v1alpha1.AddressPool, others []ownedRange) (n int, why *refusal) {
	pools = slices.Clone(pools)
	slices.SortFunc(pools, byAge)
	held := slices.Clone(others)
	for i := range pools {
		held = append(held, ownedRanges(&pools[i], accepted(&pools[i]))...)
	}
	for i := range pools {
		p := &pools[i]
		granted, no := grant(p, held)
		if p.Name == name {
			return granted, no
		}
		held = append(held, ownedRanges(p, granted)...)
	}
	return 0, nil
}

func byAge(a, b v1alpha1.AddressPool) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// grant extends a pool's accepted subnets by those that overlap nobody else's.
func grant(p *v1alpha1.AddressPool, held []ownedRange) (n int, why *refusal) {
	n = accepted(p)
	if p.DeletionTimestamp != nil {
		return n, nil
	}
	for ; n < len(p.Spec.Subnets); n++ {
		if _, err := layout(p, n+1); err != nil {
			return n, &refusal{v1alpha1.ReasonPoolInvalid, "spec." + err.Error()}
		}
		for _, mine := range ownedRanges(p, n+1) {
			for _, h := range held {
				if h.owner != p.Name && h.Overlaps(mine.Prefix) {
					return n, overlaps(n, mine, h)
				}
			}
		}
	}
	return n, nil
}

func overlaps(subnet int, mine, other ownedRange) *refusal {
	return &refusal{v1alpha1.ReasonPoolOverlaps, fmt.Sprintf("spec.subnets[%d]: %s overlaps %s", subnet, mine.Prefix, other)}
}

// ownedRanges returns the first n subnets of a pool, except invalid ones.
func ownedRanges(p *v1alpha1.AddressPool, n int) (out []ownedRange) {
	list, _ := subnets(p, n) // an invalid subnet has no addresses
	for _, s := range list {
		for _, c := range []netip.Prefix{s.IPv4, s.IPv6} {
			if c.IsValid() {
				out = append(out, ownedRange{Prefix: c, owner: p.Name})
			}
		}
	}
	return out
}

// orphanRanges returns a function that lists the addresses of a block that its pool would not
// assign to a block of that index today: the pool is gone or was recreated.
func orphanRanges(pools []v1alpha1.AddressPool) func(*v1alpha1.AddressBlock) []ownedRange {
	layouts := map[string]block.Layout{}
	for i := range pools {
		if l, err := layout(&pools[i], len(pools[i].Spec.Subnets)); err == nil {
			layouts[pools[i].Name] = l
		}
	}
	return func(b *v1alpha1.AddressBlock) (out []ownedRange) {
		var proper block.Block
		if l, ok := layouts[b.PoolName]; ok {
			proper, _ = l.Block(b.Index) // zero if the index is out of range
		}
		for _, c := range cidrs(b) {
			if c != proper.IPv4 && c != proper.IPv6 {
				out = append(out, ownedRange{Prefix: c, block: b.Name})
			}
		}
		return out
	}
}

// conflict returns how many of a pool's accepted subnets, from the first on, overlap no other
// pool's, and the pool that the next one overlaps; other is nil without a conflict. Conflicts
// arise when two operators accept subnets concurrently.
func conflict(name string, pools []v1alpha1.AddressPool) (own int, other *v1alpha1.AddressPool, why *refusal) {
	i := slices.IndexFunc(pools, func(p v1alpha1.AddressPool) bool { return p.Name == name })
	if i < 0 {
		return 0, nil, nil
	}
	all := accepted(&pools[i])
	for own = range all {
		for _, mine := range ownedRanges(&pools[i], own+1) {
			for k := range pools {
				for _, h := range ownedRanges(&pools[k], accepted(&pools[k])) {
					if k != i && h.Overlaps(mine.Prefix) {
						return own, &pools[k], overlaps(own, mine, h)
					}
				}
			}
		}
	}
	return all, nil, nil
}

// cidrs returns the CIDRs of a block, IPv4 first.
func cidrs(b *v1alpha1.AddressBlock) (out []netip.Prefix) {
	for _, text := range [...]string{b.IPv4, b.IPv6} {
		if c, err := netip.ParsePrefix(text); err == nil {
			out = append(out, c)
		}
	}
	return out
}
