package vpc

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"net/netip"
)

// prefixBits4 and prefixBits6 are the sizes of delegated prefixes
// (EC2 User Guide, "Assigning prefixes to network interfaces").
const (
	prefixBits4 = 28
	prefixBits6 = 80
	blockSize   = 1 << (32 - prefixBits4)
)

// space4 is the IPv4 address space of one subnet, with one bit per address. As in EC2, single addresses are
// chosen at random, which fragments the subnet.
type space4 struct {
	cidr netip.Prefix
	base uint32
	size int
	used []uint64
	free int
}

// newSpace4 reserves the first four addresses and the last one
// (VPC User Guide, "Subnet sizing").
func newSpace4(cidr netip.Prefix) *space4 {
	b := cidr.Masked().Addr().As4()
	s := &space4{cidr: cidr, base: binary.BigEndian.Uint32(b[:]), size: 1 << (32 - cidr.Bits())}
	s.used = make([]uint64, (s.size+63)/64)
	for i := s.size; i < len(s.used)*64; i++ {
		s.set(i)
	}
	s.free = s.size
	for _, i := range []int{0, 1, 2, 3, s.size - 1} {
		s.set(i)
		s.free--
	}
	return s
}

func (s *space4) set(i int)      { s.used[i/64] |= 1 << (i % 64) }
func (s *space4) clear(i int)    { s.used[i/64] &^= 1 << (i % 64) }
func (s *space4) has(i int) bool { return s.used[i/64]&(1<<(i%64)) != 0 }
func (s *space4) block(i int) uint64 {
	return s.used[i/64] >> (i % 64) & (1<<blockSize - 1)
}

func (s *space4) index(a netip.Addr) int {
	b := a.As4()
	return int(binary.BigEndian.Uint32(b[:]) - s.base)
}

func (s *space4) addr(i int) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], s.base+uint32(i))
	return netip.AddrFrom4(b)
}

func (s *space4) reserved(a netip.Addr) bool {
	i := s.index(a)
	return i < 4 || i == s.size-1
}

func (s *space4) taken(a netip.Addr) bool { return s.has(s.index(a)) }

func (s *space4) take(a netip.Addr)    { s.set(s.index(a)); s.free-- }
func (s *space4) release(a netip.Addr) { s.clear(s.index(a)); s.free++ }

// prefixFree reports whether all sixteen addresses of a prefix are free.
func (s *space4) prefixFree(p netip.Prefix) bool { return s.block(s.index(p.Addr())) == 0 }

func (s *space4) takePrefix(p netip.Prefix) {
	for i := range blockSize {
		s.set(s.index(p.Addr()) + i)
	}
	s.free -= blockSize
}

func (s *space4) releasePrefix(p netip.Prefix) {
	for i := range blockSize {
		s.clear(s.index(p.Addr()) + i)
	}
	s.free += blockSize
}

// pick finds a free address, starting from a random position.
func (s *space4) pick(rng *rand.Rand) (netip.Addr, bool) {
	start := rng.IntN(s.size)
	for n := range len(s.used) + 1 {
		w := (start/64 + n) % len(s.used)
		open := ^s.used[w]
		if n == 0 {
			open &= ^uint64(0) << (start % 64)
		}
		if open != 0 {
			return s.addr(w*64 + bits.TrailingZeros64(open)), true
		}
	}
	return netip.Addr{}, false
}

// pickPrefix finds a free aligned prefix, starting from a random position.
func (s *space4) pickPrefix(rng *rand.Rand) (netip.Prefix, bool) {
	blocks := s.size / blockSize
	start := rng.IntN(blocks)
	for n := range blocks {
		i := (start + n) % blocks * blockSize
		if s.block(i) == 0 {
			return netip.PrefixFrom(s.addr(i), prefixBits4), true
		}
	}
	return netip.Prefix{}, false
}

// space6 is the IPv6 address space of one subnet, a /64. It stores only addresses and prefixes in use.
type space6 struct {
	cidr     netip.Prefix
	addrs    map[netip.Addr]bool
	prefixes map[netip.Prefix]bool
	singles  map[netip.Prefix]int // addresses in use, by the prefix around them
}

func newSpace6(cidr netip.Prefix) *space6 {
	return &space6{cidr: cidr, addrs: map[netip.Addr]bool{}, prefixes: map[netip.Prefix]bool{}, singles: map[netip.Prefix]int{}}
}

func around(a netip.Addr) netip.Prefix {
	return netip.PrefixFrom(a, prefixBits6).Masked()
}

func (s *space6) taken(a netip.Addr) bool { return s.addrs[a] || s.prefixes[around(a)] }
func (s *space6) take(a netip.Addr)       { s.addrs[a] = true; s.singles[around(a)]++ }
func (s *space6) release(a netip.Addr) {
	delete(s.addrs, a)
	if s.singles[around(a)]--; s.singles[around(a)] == 0 {
		delete(s.singles, around(a))
	}
}
func (s *space6) prefixFree(p netip.Prefix) bool { return !s.prefixes[p] && s.singles[p] == 0 }
func (s *space6) takePrefix(p netip.Prefix)      { s.prefixes[p] = true }
func (s *space6) releasePrefix(p netip.Prefix)   { delete(s.prefixes, p) }

// reserved reports whether a is among the first four addresses or the last one, as with IPv4.
func (s *space6) reserved(a netip.Addr) bool {
	b := a.As16()
	host := binary.BigEndian.Uint64(b[8:])
	return host < 4 || host == ^uint64(0)
}

func (s *space6) addr(host uint64) netip.Addr {
	b := s.cidr.Addr().As16()
	binary.BigEndian.PutUint64(b[8:], host)
	return netip.AddrFrom16(b)
}

// pick finds a random free address.
func (s *space6) pick(rng *rand.Rand) netip.Addr {
	for {
		if a := s.addr(rng.Uint64()); !s.taken(a) && !s.reserved(a) {
			return a
		}
	}
}

// pickPrefix skips the first and the last prefix, which have reserved addresses.
func (s *space6) pickPrefix(rng *rand.Rand) (netip.Prefix, bool) {
	const prefixes = 1 << (prefixBits6 - 64)
	start := rng.IntN(prefixes)
	for n := range prefixes {
		i := uint64((start + n) % prefixes)
		p := netip.PrefixFrom(s.addr(i<<48), prefixBits6)
		if i != 0 && i != prefixes-1 && s.prefixFree(p) {
			return p, true
		}
	}
	return netip.Prefix{}, false
}
