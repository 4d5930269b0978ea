package cloudfake

import (
	"encoding/binary"
	"net/netip"
)

// space6 is the IPv6 block of a subnet, a /64. Its first /80 is for single
// addresses, so that none is of a prefix; each is given once. The other /80s are
// given the one after the last, so that a reuse is the longest ago; the very last
// never, since EC2 reserves an address of it (VPC User Guide, "Subnet CIDR blocks").
type space6 struct {
	cidr   netip.Prefix
	next   uint64 // host part of the next single address
	number uint64 // of the /80 to look at first
	taken  map[netip.Prefix]bool
}

const (
	prefixBits6 = 80                      // EC2 User Guide, "Prefix delegation"
	prefixes6   = 1<<(prefixBits6-64) - 2 // that a /64 has to give
	hostShift6  = 128 - prefixBits6       // from the number of a /80 to its host part
	firstHost6  = 4                       // EC2 reserves the first four addresses
)

func newSpace6(cidr netip.Prefix) *space6 {
	must(cidr.IsValid() && cidr.Addr().Is6() && cidr.Bits() == 64 && cidr == cidr.Masked(), "IPv6 block %v: expected a /64", cidr)
	return &space6{cidr: cidr, next: firstHost6, number: 1, taken: map[netip.Prefix]bool{}}
}

// at is the address of the block with a host part.
func (s *space6) at(host uint64) netip.Addr {
	b := s.cidr.Addr().As16()
	binary.BigEndian.PutUint64(b[8:], host)
	return netip.AddrFrom16(b)
}

// take gives an address that was never given.
func (s *space6) take() netip.Addr {
	s.next++
	return s.at(s.next - 1)
}

// takeCertain gives an address that nobody has. No single one before it is given any more.
func (s *space6) takeCertain(a netip.Addr) {
	b := a.As16()
	if host := binary.BigEndian.Uint64(b[8:]); host < 1<<hostShift6 {
		s.next = max(s.next, host+1)
	}
}

// free is how many prefixes can be given.
func (s *space6) free() int { return prefixes6 - len(s.taken) }

// takePrefix gives a prefix that is free, which there has to be.
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
