package cloudsim

import (
	"net/netip"

	"github.com/berthnet/berth/internal/cloud"
)

// subnet hands out single addresses from below and prefixes from above, each
// given back one again before a new one.
type subnet struct {
	cloud.Subnet
	next     netip.Addr // the lowest never used
	top      netip.Addr // the lowest address of the prefixes
	addrs    []netip.Addr
	prefixes []netip.Prefix
	left     int
}

const prefixSize = 16 // addresses of a /28

func newSubnet(s cloud.Subnet, free int) *subnet {
	size := 1 << (32 - s.CIDR.Bits())
	out := &subnet{Subnet: s, next: add(s.CIDR.Addr(), 4), top: add(s.CIDR.Addr(), size-prefixSize), left: size - 5}
	if free > 0 {
		out.left = min(out.left, free)
	}
	return out
}

// add is the address n after a.
func add(a netip.Addr, n int) netip.Addr {
	b := a.As4()
	v := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	v += uint32(n)
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}

func (s *subnet) free() int { return s.left }

// take gives a free address; false when there is none.
func (s *subnet) take() (netip.Addr, bool) {
	if s.left < 1 {
		return netip.Addr{}, false
	}
	a := s.next
	switch n := len(s.addrs); {
	case n > 0:
		a, s.addrs = s.addrs[n-1], s.addrs[:n-1]
	case a.Less(s.top) || s.untouched() && s.CIDR.Contains(a.Next()):
		s.next = a.Next()
	default:
		return netip.Addr{}, false
	}
	s.left--
	return a, true
}

// untouched: no prefix was ever taken, so the block above is for addresses too.
func (s *subnet) untouched() bool {
	return s.top == add(s.CIDR.Addr(), 1<<(32-s.CIDR.Bits())-prefixSize)
}

func (s *subnet) give(a netip.Addr) { s.addrs, s.left = append(s.addrs, a), s.left+1 }

// takePrefix gives a free /28; false when there is none.
func (s *subnet) takePrefix() (netip.Prefix, bool) {
	if s.left < prefixSize {
		return netip.Prefix{}, false
	}
	var p netip.Prefix
	switch n, below := len(s.prefixes), add(s.top, -prefixSize); {
	case n > 0:
		p, s.prefixes = s.prefixes[n-1], s.prefixes[:n-1]
	case !below.Less(s.next) && s.CIDR.Contains(below):
		p, s.top = netip.PrefixFrom(below, 28), below
	default:
		return netip.Prefix{}, false
	}
	s.left -= prefixSize
	return p, true
}

func (s *subnet) givePrefix(p netip.Prefix) {
	s.prefixes, s.left = append(s.prefixes, p), s.left+prefixSize
}
