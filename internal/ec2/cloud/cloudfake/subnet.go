package cloudfake

import (
	"encoding/binary"
	"math"
	"net/netip"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
)

// subnet allocates addresses round-robin, so that reuse happens as late as possible, and prefixes from the
// highest down.
type subnet struct {
	cloud.Subnet
	blocks     []uint16 // one per /28, with a bit for each address in use
	next       int      // offset of the first address to try
	top        int      // no free prefix in this block and those above
	left       int      // free addresses
	fragmented bool     // pretend to have no free prefix
	six        *space6  // nil without IPv6
	peak       *peak    // of the State
	least      Least
}

// peak is the extremes of a State.
type peak struct {
	clock clock.Clock
	taken int // IPv4 addresses of all subnets, without those that EC2 reserves
	most  Peak
}

// Peak is the most that a VPC had at once.
type Peak struct {
	Taken int              // IPv4 addresses in use, of all subnets together
	ENIs  int              // ENIs of all kinds
	Least map[string]Least // by subnet
}

// Least is the fewest free IPv4 addresses that a subnet had, and when it had so few for the first time.
type Least struct {
	Free int
	At   time.Time
}

// Peak returns the most that the VPC had at once since it was created.
func (st *State) Peak() Peak {
	st.mu.Lock()
	defer st.mu.Unlock()
	out := st.peak.most
	out.Least = map[string]Least{}
	for id, s := range st.subnets {
		out.Least[id] = s.least
	}
	return out
}

// took records that n addresses are in use that were free.
func (s *subnet) took(n int) {
	s.left -= n
	if s.left < s.least.Free {
		s.least = Least{s.left, s.peak.clock.Now()}
	}
	s.peak.taken += n
	s.peak.most.Taken = max(s.peak.most.Taken, s.peak.taken)
}

// gave records that n addresses are free that were in use.
func (s *subnet) gave(n int) {
	s.left += n
	s.peak.taken -= n
}

const (
	prefixSize = 16 // addresses of a /28
	taken      = math.MaxUint16
)

// newSubnet returns a subnet with all addresses free, except those that EC2 reserves: the first four and
// the last (VPC User Guide, "Subnet CIDR blocks"). It has an IPv4 CIDR, an IPv6 /64, or both.
func newSubnet(s cloud.Subnet, p *peak) *subnet {
	if s.IPv6Native {
		return &subnet{Subnet: s, six: newSpace6(s.IPv6[0]), peak: p}
	}
	size := 1 << (32 - s.CIDR.Bits())
	out := &subnet{Subnet: s, blocks: make([]uint16, size/prefixSize), next: 4, top: size / prefixSize, left: size - 5, peak: p, least: Least{size - 5, p.clock.Now()}}
	out.blocks[0] |= 0x000f
	out.blocks[len(out.blocks)-1] |= 0x8000
	if len(s.IPv6) > 0 {
		out.six = newSpace6(s.IPv6[0])
	}
	return out
}

// Free is the number of free IPv4 addresses of a subnet; a very large number for an IPv6-only one.
func (st *State) Free(id string) int {
	st.mu.Lock()
	defer st.mu.Unlock()
	s := st.subnets[id]
	if s.IPv6Native {
		return math.MaxInt
	}
	return s.left
}

// Occupy takes free IPv4 addresses of a subnet, which others use from now on.
func (st *State) Occupy(id string, n int) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for range n {
		_, _ = st.subnets[id].take()
	}
}

// own is the number of primary IPv4 addresses per ENI.
func (s *subnet) own() int {
	if s.IPv6Native {
		return 0
	}
	return 1
}

// at is the n-th address of the CIDR; index is its inverse.
func (s *subnet) at(n int) netip.Addr {
	b := s.CIDR.Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n))
	return netip.AddrFrom4(b)
}

func (s *subnet) index(a netip.Addr) int {
	b, first := a.As4(), s.CIDR.Addr().As4()
	return int(binary.BigEndian.Uint32(b[:]) - binary.BigEndian.Uint32(first[:]))
}

// take allocates an address; false if the subnet is full.
func (s *subnet) take() (netip.Addr, bool) {
	if s.left < 1 {
		return netip.Addr{}, false
	}
	for ; ; s.next++ {
		block, bit := s.next/prefixSize%len(s.blocks), s.next%prefixSize
		if s.blocks[block] == taken {
			s.next += prefixSize - 1 - bit
		} else if s.blocks[block]&(1<<bit) == 0 {
			s.blocks[block] |= 1 << bit
			s.next++
			s.took(1)
			return s.at(block*prefixSize + bit), true
		}
	}
}

// reserved reports whether EC2 reserves an address of the CIDR.
func (s *subnet) reserved(a netip.Addr) bool {
	i := s.index(a)
	return i < 4 || i == len(s.blocks)*prefixSize-1
}

// has reports whether an address of the CIDR is free.
func (s *subnet) has(a netip.Addr) bool {
	i := s.index(a)
	return s.blocks[i/prefixSize]&(1<<(i%prefixSize)) == 0
}

// takeThis allocates the given free address.
func (s *subnet) takeThis(a netip.Addr) {
	i := s.index(a)
	s.blocks[i/prefixSize] |= 1 << (i % prefixSize)
	s.took(1)
}

func (s *subnet) give(a netip.Addr) {
	i := s.index(a)
	s.blocks[i/prefixSize] &^= 1 << (i % prefixSize)
	s.gave(1)
	s.freed(i / prefixSize)
}

// giveAll frees the addresses and prefixes of an ENI, except its primary address. IPv6 addresses are not
// reused and need not be freed.
func (s *subnet) giveAll(addrs []netip.Addr, prefixes, six []netip.Prefix) {
	for _, a := range addrs {
		s.give(a)
	}
	for _, p := range prefixes {
		s.givePrefix(p)
	}
	for _, p := range six {
		delete(s.six.taken, p)
	}
}

// takePrefix allocates a /28; false if none is free.
func (s *subnet) takePrefix() (netip.Prefix, bool) {
	if s.left < prefixSize || s.fragmented {
		return netip.Prefix{}, false
	}
	for s.top > 0 {
		s.top--
		if s.blocks[s.top] == 0 {
			s.blocks[s.top] = taken
			s.took(prefixSize)
			return netip.PrefixFrom(s.at(s.top*prefixSize), 28), true
		}
	}
	return netip.Prefix{}, false
}

func (s *subnet) givePrefix(p netip.Prefix) {
	block := s.index(p.Addr()) / prefixSize
	s.blocks[block] = 0
	s.gave(prefixSize)
	s.freed(block)
}

// freed records that a block may have become a free prefix.
func (s *subnet) freed(block int) {
	if s.blocks[block] == 0 {
		s.top = max(s.top, block+1)
	}
}

// space6 is the IPv6 block of a subnet, a /64. Its first /80 is for single addresses, which are never
// reused. The other /80s are prefixes, allocated round-robin, except the last one, in which EC2 reserves an
// address (VPC User Guide, "Subnet CIDR blocks").
type space6 struct {
	cidr   netip.Prefix
	next   uint64 // host part of the next single address
	number uint64 // index of the first /80 to try
	taken  map[netip.Prefix]bool
}

const (
	prefixBits6 = 80                      // EC2 User Guide, "Prefix delegation"
	prefixes6   = 1<<(prefixBits6-64) - 2 // in a /64
	hostShift6  = 128 - prefixBits6       // from the number of a /80 to its host part
	firstHost6  = 4                       // EC2 reserves the first four addresses
)

func newSpace6(cidr netip.Prefix) *space6 {
	must(cidr.IsValid() && cidr.Addr().Is6() && cidr.Bits() == 64 && cidr == cidr.Masked(), "IPv6 block %v: expected a /64", cidr)
	return &space6{cidr: cidr, next: firstHost6, number: 1, taken: map[netip.Prefix]bool{}}
}

// at returns the address with the given host part.
func (s *space6) at(host uint64) netip.Addr {
	b := s.cidr.Addr().As16()
	binary.BigEndian.PutUint64(b[8:], host)
	return netip.AddrFrom16(b)
}

// take allocates a new address.
func (s *space6) take() netip.Addr {
	s.next++
	return s.at(s.next - 1)
}

// takeCertain allocates a given free address. Later single addresses are higher.
func (s *space6) takeCertain(a netip.Addr) {
	b := a.As16()
	if host := binary.BigEndian.Uint64(b[8:]); host < 1<<hostShift6 {
		s.next = max(s.next, host+1)
	}
}

// free is the number of free prefixes.
func (s *space6) free() int { return prefixes6 - len(s.taken) }

// takePrefix allocates a prefix. One must be free.
func (s *space6) takePrefix() netip.Prefix {
	for {
		p := netip.PrefixFrom(s.at(s.number<<hostShift6), prefixBits6)
		s.number = s.number%prefixes6 + 1
		if !s.taken[p] {
			s.taken[p] = true
			return p
		}
	}
}
