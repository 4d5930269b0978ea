package block

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"sort"
)

const (
	// MaxIndex is the highest index of a block. It bounds the cost of a pool,
	// regardless of the size of its subnets; no cluster needs 2^31 blocks.
	MaxIndex = 1<<31 - 1

	// MaxBits is the maximum block size, as a power of two: 65536 addresses,
	// more than the pods of any node.
	MaxBits = 16
)

// Subnet is a range of addresses of a pool. A zero Prefix means that it has none of that family.
type Subnet struct{ IPv4, IPv6 netip.Prefix }

// Block is a part of a pool, with 2^bits addresses of each of the pool's families. A zero Prefix means that it has none of
// that family.
type Block struct{ IPv4, IPv6 netip.Prefix }

// Layout is the division of a pool into blocks. It is an immutable value, and the zero Layout has no blocks.
type Layout struct {
	bits    int
	subnets []span
	blocks  int64
}

// span is a subnet and its blocks.
type span struct {
	Subnet
	end int64 // the index after its last block
}

// Parse returns the layout of a pool with blocks of 2^bits addresses of each family. The rules are those of the
// AddressPool's CRD. The error names the invalid field as it is called there, such as subnets[1].ipv6.
func Parse(bits int, subnets []Subnet) (Layout, error) {
	if bits < 0 || bits > MaxBits {
		return Layout{}, fmt.Errorf("blockSizeBits must be between 0 and %d, not %d", MaxBits, bits)
	}
	if len(subnets) == 0 {
		return Layout{}, errors.New("subnets must not be empty")
	}
	l := Layout{bits: bits, subnets: make([]span, 0, len(subnets))}
	for i, s := range subnets {
		if err := l.check(fmt.Sprintf("subnets[%d]", i), s); err != nil {
			return Layout{}, err
		}
		l.blocks = min(l.blocks+s.blocks(bits), MaxIndex+1)
		l.subnets = append(l.subnets, span{s, l.blocks})
	}
	return l, nil
}

// check returns an error if a subnet cannot be appended. name is its name in the error.
func (l Layout) check(name string, s Subnet) error {
	if !s.IPv4.IsValid() && !s.IPv6.IsValid() {
		return fmt.Errorf("%s must have ipv4, ipv6 or both", name)
	}
	for _, f := range s.families() {
		if err := f.check(l.bits); err != nil {
			return fmt.Errorf("%s.%s %w", name, f.name, err)
		}
	}
	if s.IPv4.IsValid() && s.IPv6.IsValid() && hostBits(s.IPv4) != hostBits(s.IPv6) {
		return fmt.Errorf("%s.ipv6 %s must have as many addresses as ipv4 %s, so be a /%d", name, s.IPv6, s.IPv4, 128-hostBits(s.IPv4))
	}
	for i, earlier := range l.subnets {
		if s.IPv4.IsValid() != earlier.IPv4.IsValid() || s.IPv6.IsValid() != earlier.IPv6.IsValid() {
			return fmt.Errorf("%s must have the families of subnets[%d]: all subnets have ipv4, or ipv6, or both", name, i)
		}
		if a, b, ok := s.overlap(earlier.Subnet); ok {
			return fmt.Errorf("%s.%s %s overlaps %s of subnets[%d]", name, familyOf(a), a, b, i)
		}
	}
	return nil
}

// Blocks returns the number of blocks in the pool, at most MaxIndex+1.
func (l Layout) Blocks() int64 { return l.blocks }

// BlockAddresses returns the number of addresses of one family in a block.
func (l Layout) BlockAddresses() int64 { return 1 << l.bits }

// Block returns the block with an index, which must be from 0 to Blocks-1.
func (l Layout) Block(index int64) (Block, error) {
	if index < 0 || index >= l.blocks {
		return Block{}, fmt.Errorf("block %d: the pool has blocks 0 to %d", index, l.blocks-1)
	}
	i := sort.Search(len(l.subnets), func(i int) bool { return index < l.subnets[i].end })
	if i > 0 {
		index -= l.subnets[i-1].end
	}
	s := l.subnets[i]
	return Block{IPv4: piece(s.IPv4, l.bits, index), IPv6: piece(s.IPv6, l.bits, index)}, nil
}

// Find returns the index of the block with an address.
func (l Layout) Find(a netip.Addr) (index int64, ok bool) {
	var first int64
	for _, s := range l.subnets {
		for _, f := range s.families() {
			if !f.prefix.Contains(a) {
				continue
			}
			n := distance(f.prefix.Addr(), a) >> l.bits
			return first + int64(n), n < uint64(s.end-first)
		}
		first = s.end
	}
	return 0, false
}

// distance returns the distance of an address from the first one of its prefix, capped at the largest uint64.
func distance(from, to netip.Addr) uint64 {
	x, y := from.As16(), to.As16()
	if binary.BigEndian.Uint64(x[:8]) != binary.BigEndian.Uint64(y[:8]) {
		return math.MaxUint64
	}
	return binary.BigEndian.Uint64(y[8:]) - binary.BigEndian.Uint64(x[8:])
}

// overlap finds addresses that two subnets have in common.
func (s Subnet) overlap(o Subnet) (a, b netip.Prefix, ok bool) {
	switch {
	case s.IPv4.Overlaps(o.IPv4):
		return s.IPv4, o.IPv4, true
	case s.IPv6.Overlaps(o.IPv6):
		return s.IPv6, o.IPv6, true
	}
	return netip.Prefix{}, netip.Prefix{}, false
}

// blocks returns the number of blocks in a subnet, at most MaxIndex+1.
func (s Subnet) blocks(bits int) int64 {
	p := s.IPv4
	if !p.IsValid() {
		p = s.IPv6
	}
	return 1 << min(hostBits(p)-bits, 31)
}

// family is one of a subnet's prefixes, with the name of its field.
type family struct {
	name   string
	prefix netip.Prefix
}

// families returns the families of the subnet.
func (s Subnet) families() []family {
	return slices.DeleteFunc([]family{{"ipv4", s.IPv4}, {"ipv6", s.IPv6}}, func(f family) bool { return !f.prefix.IsValid() })
}

// check returns an error if blocks of 2^bits addresses cannot be cut from the prefix.
func (f family) check(bits int) error {
	switch p := f.prefix; {
	case p.Addr().Is4In6() || familyOf(p) != f.name:
		return fmt.Errorf("%s is of the other family", p)
	case p != p.Masked():
		return fmt.Errorf("%s has host bits set, expected %s", p, p.Masked())
	case hostBits(p) < bits:
		return fmt.Errorf("%s is smaller than a block: with blockSizeBits %d it must be a /%d or larger", p, bits, p.Addr().BitLen()-bits)
	}
	return nil
}

func familyOf(p netip.Prefix) string {
	if p.Addr().Is4() {
		return "ipv4"
	}
	return "ipv6"
}

// hostBits returns the size of a prefix as a power of two.
func hostBits(p netip.Prefix) int { return p.Addr().BitLen() - p.Bits() }

// piece returns the prefix of 2^bits addresses at an index of a prefix; for the zero Prefix the zero Prefix. The index has
// at most 31 bits, so its distance from the start fits into 64 bits, and as the piece is inside the prefix, adding it
// carries into no higher bit.
func piece(p netip.Prefix, bits int, index int64) netip.Prefix {
	if !p.IsValid() {
		return netip.Prefix{}
	}
	a := p.Addr().AsSlice()
	if p.Addr().Is4() {
		binary.BigEndian.PutUint32(a, binary.BigEndian.Uint32(a)+uint32(index<<bits))
	} else {
		binary.BigEndian.PutUint64(a[8:], binary.BigEndian.Uint64(a[8:])+uint64(index)<<bits)
	}
	first, _ := netip.AddrFromSlice(a)
	return netip.PrefixFrom(first, first.BitLen()-bits)
}
