package reach

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// neighbours is a protocol by which the owner of an address on a link answers.
type neighbours struct {
	protocol uint16 // of Ethernet
	request  func(target netip.Addr) (to net.HardwareAddr, packet []byte, err error)
	// owner returns the address whose owner sent a packet, or the zero Addr.
	owner func(packet []byte) netip.Addr
}

// Both ask without an address of their own, as who looks for duplicates of an address does (RFC 5227, RFC 4862).
var (
	arp = neighbours{unix.ETH_P_ARP, arpRequest, arpOwner}
	ndp = neighbours{unix.ETH_P_IPV6, solicitation, advertiser}
)

// packets is a packet socket for all links.
type packets struct {
	neighbours
	fd int
}

func openLink(of neighbours) (socket, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(bigEndian(of.protocol)))
	if err != nil {
		return nil, fmt.Errorf("open a packet socket: %w", err)
	}
	return &packets{of, fd}, nil
}

func bigEndian(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

func (s *packets) close() error { return unix.Close(s.fd) }

func (s *packets) send(t *target) error {
	to, packet, err := s.request(t.addr)
	if err != nil {
		return err
	}
	at := &unix.SockaddrLinklayer{Protocol: bigEndian(s.protocol), Ifindex: t.link, Halen: uint8(len(to))}
	copy(at.Addr[:], to)
	return unix.Sendto(s.fd, packet, 0, at)
}

// receive accepts a packet of the owner of a target's address that has come by its link.
func (s *packets) receive(until time.Time, targets []*target) (*target, error) {
	wait := unix.NsecToTimeval(max(time.Until(until), time.Millisecond).Nanoseconds())
	if err := unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		return nil, err
	}
	buf := make([]byte, 1500)
	n, from, err := unix.Recvfrom(s.fd, buf, 0)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENETDOWN) { // of any link
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	link, ok := from.(*unix.SockaddrLinklayer)
	if !ok || link.Pkttype == unix.PACKET_OUTGOING {
		return nil, nil
	}
	addr := s.owner(buf[:n])
	if i := slices.IndexFunc(targets, func(t *target) bool { return t.addr == addr && t.link == link.Ifindex }); i >= 0 {
		return targets[i], nil
	}
	return nil, nil
}

// Fields of ARP for IPv4 on Ethernet (RFC 826).
const (
	arpLength  = 28
	arpAnswers = 2 // operation
)

var arpHead = []byte{0, 1, 8, 0, 6, 4} // Ethernet, IPv4, and the lengths of their addresses

func arpRequest(target netip.Addr) (to net.HardwareAddr, packet []byte, err error) {
	packet = append(slices.Clone(arpHead), 0, 1)    // a request
	packet = append(packet, make([]byte, 6+4+6)...) // of nobody
	packet = append(packet, target.AsSlice()...)    // about target
	return net.HardwareAddr{255, 255, 255, 255, 255, 255}, packet, nil
}

func arpOwner(packet []byte) netip.Addr {
	if len(packet) < arpLength || !slices.Equal(packet[:6], arpHead) || binary.BigEndian.Uint16(packet[6:]) != arpAnswers {
		return netip.Addr{}
	}
	return netip.AddrFrom4([4]byte(packet[14:18]))
}

// Lengths and offsets of IPv6 and its neighbour discovery (RFC 8200, RFC 4861).
const (
	headerLength = 40
	adLength     = 24 // of an advertisement without options
)

func solicitation(target netip.Addr) (to net.HardwareAddr, packet []byte, err error) {
	a := target.As16()
	group := netip.AddrFrom16([16]byte{0: 0xff, 1: 2, 11: 1, 12: 0xff, 13: a[13], 14: a[14], 15: a[15]}) // the solicited-node address
	m := icmp.Message{Type: ipv6.ICMPTypeNeighborSolicitation, Body: &icmp.RawBody{Data: append(make([]byte, 4), a[:]...)}}
	body, err := m.Marshal(icmp.IPv6PseudoHeader(net.IPv6unspecified, group.AsSlice()))
	if err != nil {
		return nil, nil, err
	}
	packet = append([]byte{0x60, 0, 0, 0, 0, byte(len(body)), unix.IPPROTO_ICMPV6, 255}, net.IPv6unspecified...)
	packet = append(packet, group.AsSlice()...)
	return net.HardwareAddr{0x33, 0x33, 0xff, a[13], a[14], a[15]}, append(packet, body...), nil
}

func advertiser(packet []byte) netip.Addr {
	if len(packet) < headerLength+adLength || packet[0]>>4 != 6 || packet[6] != unix.IPPROTO_ICMPV6 || packet[7] != 255 || packet[headerLength] != 136 {
		return netip.Addr{}
	}
	return netip.AddrFrom16([16]byte(packet[headerLength+8:]))
}
