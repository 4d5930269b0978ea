package datapath

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// With metadata blocked no packet for it leaves the node, however a pod wraps it:
// in fragments, behind options and extension headers, routed by its source, or in a
// tunnel that the node would have to end. Nor does one leave the VPC with the pod's
// own address that way.
func TestOddPacketsDoNotReachMetadata(t *testing.T) {
	v := newVPC(t, func(v *vpc) { v.config.BlockMetadata = true; v.uplinks.PrimaryIPv6 = netip.MustParseAddr(nodeAddr6) })
	v.router.serveTCP(":80")
	p := v.pod(podB, podB6)
	seen := v.router.sniff()
	from4, from6 := netip.MustParseAddr(podB), netip.MustParseAddr(podB6)
	node4, node6 := netip.MustParseAddr(nodeAddr), netip.MustParseAddr(nodeAddr6)
	internet4, outside6 := netip.MustParseAddr(internet), netip.MustParseAddr(internet6)
	var v4, v6 [][]byte
	for _, to := range []netip.Addr{metadata[0], internet4} {
		datagram := udp(from4, to)[20:]
		inner := udp(from4, to)
		route := slices.Concat([]byte{131, 7, 4}, to.AsSlice(), []byte{0}) // loose source route, then the end
		strict := slices.Concat([]byte{137, 7, 4}, to.AsSlice(), []byte{0})
		v4 = append(v4,
			ip4(unix.IPPROTO_UDP, from4, node4, 0, route, datagram), ip4(unix.IPPROTO_UDP, from4, node4, 0, strict, datagram),
			ip4(unix.IPPROTO_IPIP, from4, node4, 0, nil, inner),
			ip4(unix.IPPROTO_GRE, from4, node4, 0, nil, append([]byte{0, 0, 8, 0}, inner...)),
			ip4(unix.IPPROTO_UDP, from4, to, 0x2000, nil, datagram[:8]), ip4(unix.IPPROTO_UDP, from4, to, 1, nil, datagram[8:]),
			ip4(unix.IPPROTO_UDP, from4, to, 1, nil, datagram[8:]),                        // never complete
			ip4(unix.IPPROTO_UDP, from4, to, 0, []byte{148, 4, 0, 0}, datagram),           // router alert
			ip4(unix.IPPROTO_UDP, from4, to, 0, []byte{7, 7, 4, 0, 0, 0, 0, 0}, datagram)) // record route
	}
	for _, to := range []netip.Addr{metadata[1], outside6} {
		datagram := udp(from6, to)[40:]
		pad := func(next byte) []byte { return []byte{next, 0, 1, 4, 0, 0, 0, 0} } // a header of options without any
		fragment := func(next byte, offset int, more byte) []byte {
			b := []byte{next, 0, 0, 0, 0, 0, 0, 9}
			binary.BigEndian.PutUint16(b[2:], uint16(offset)|uint16(more))
			return b
		}
		routing := func(kind byte) []byte {
			b := []byte{unix.IPPROTO_UDP, 2, kind, 1, 0, 0, 0, 0}
			return append(b, to.AsSlice()...)
		}
		for _, kind := range []byte{0, 2, 3, 4} {
			v6 = append(v6, ip6(unix.IPPROTO_ROUTING, from6, node6, routing(kind), datagram))
		}
		v6 = append(v6,
			ip6(unix.IPPROTO_HOPOPTS, from6, to, pad(unix.IPPROTO_UDP), datagram),
			ip6(unix.IPPROTO_DSTOPTS, from6, to, pad(unix.IPPROTO_UDP), datagram),
			ip6(unix.IPPROTO_HOPOPTS, from6, to, pad(unix.IPPROTO_DSTOPTS), pad(unix.IPPROTO_FRAGMENT), fragment(unix.IPPROTO_UDP, 0, 0), datagram),
			ip6(unix.IPPROTO_FRAGMENT, from6, to, fragment(unix.IPPROTO_UDP, 0, 1), datagram[:8]),
			ip6(unix.IPPROTO_FRAGMENT, from6, to, fragment(unix.IPPROTO_UDP, 0, 1), datagram[:8]), // overlaps
			ip6(unix.IPPROTO_FRAGMENT, from6, to, fragment(unix.IPPROTO_UDP, 8, 0), datagram[8:]),
			ip6(unix.IPPROTO_FRAGMENT, from6, to, fragment(unix.IPPROTO_UDP, 64, 0), datagram), // never complete
			ip6(unix.IPPROTO_IPV6, from6, node6, udp(from6, to)),
			ip6(unix.IPPROTO_ROUTING, from6, to, routing(0), datagram))
		v4 = append(v4, ip4(unix.IPPROTO_IPV6, from4, node4, 0, nil, udp(from6, to)))
	}
	p.frames(unix.ETH_P_IP, v4...)
	p.frames(unix.ETH_P_IPV6, v6...)
	p.seenAs(internet+":80", nodeAddr) // came after them
	p.seenAs("["+internet6+"]:80", nodeAddr6)
	for _, s := range seen() {
		if slices.Contains(metadata, s.to) {
			t.Errorf("a packet from %s for metadata left the node: % x", s.from, s.bytes)
		}
		if (s.to == internet4 || s.to == outside6) && (s.from == from4 || s.from == from6) {
			t.Errorf("the internet saw a packet of %s: % x", s.from, s.bytes)
		}
	}
}
