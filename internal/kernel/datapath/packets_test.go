package datapath

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Packets that a test builds and captures.

// frames sends Ethernet frames on a pod's own link.
func (p *pod) frames(kind uint16, payloads ...[]byte) {
	p.t.Helper()
	p.in(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		to := &unix.SockaddrLinklayer{Protocol: kind<<8 | kind>>8, Ifindex: p.links.PodIndex, Halen: 6}
		copy(to.Addr[:], p.links.HostMAC)
		for _, b := range payloads {
			if err := unix.Sendto(fd, b, 0, to); err != nil {
				return err
			}
		}
		return nil
	})
}

// ip4 is a packet with options, or a fragment of one; fragment is the header's word of flags and offset (RFC 791
// section 3.1).
func ip4(protocol byte, from, to netip.Addr, fragment uint16, options, body []byte) []byte {
	words := byte(5 + len(options)/4)
	head := []byte{0x40 | words, 0, 0, 0, 0x12, 0x34, 0, 0, 64, protocol, 0, 0}
	binary.BigEndian.PutUint16(head[2:], uint16(int(words)*4+len(body)))
	binary.BigEndian.PutUint16(head[6:], fragment)
	head = slices.Concat(head, from.AsSlice(), to.AsSlice(), options)
	none := netip.IPv4Unspecified()
	binary.BigEndian.PutUint16(head[10:], checksum(-uint32(len(head)), none, none, head))
	return append(head, body...)
}

// ip6 is a packet whose payload begins with a header of type next (RFC 8200 section 3).
func ip6(next byte, from, to netip.Addr, parts ...[]byte) []byte {
	body := slices.Concat(parts...)
	head := []byte{0x60, 0, 0, 0, 0, 0, next, 64}
	binary.BigEndian.PutUint16(head[4:], uint16(len(body)))
	return slices.Concat(head, from.AsSlice(), to.AsSlice(), body)
}

// arpQuestion is an ARP request (RFC 826).
func arpQuestion(from net.HardwareAddr, sender, target netip.Addr) []byte {
	b := append([]byte{0, 1, 8, 0, 6, 4, 0, 1}, from...)
	b = append(b, sender.AsSlice()...)
	b = append(b, make([]byte, 6)...)
	return append(b, target.AsSlice()...)
}

// udp is a datagram to port 53 with an IP header.
func udp(from, to netip.Addr) []byte {
	body := []byte{0, 99, 0, 53, 0, 10, 0, 0, 'x', 'x'}
	binary.BigEndian.PutUint16(body[6:], checksum(unix.IPPROTO_UDP, from, to, body))
	head := []byte{0x60, 0, 0, 0, 0, byte(len(body)), unix.IPPROTO_UDP, 64}
	if from.Is4() {
		head = []byte{0x45, 0, 0, byte(20 + len(body)), 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
		none := netip.IPv4Unspecified() // the header's sum has no pseudo-header
		whole := slices.Concat(head, from.AsSlice(), to.AsSlice())
		binary.BigEndian.PutUint16(head[10:], checksum(-uint32(len(whole)), none, none, whole))
	}
	return slices.Concat(head, from.AsSlice(), to.AsSlice(), body)
}

// icmp6 is a neighbour discovery message with a source link-layer address (RFC 4861 sections 4.1, 4.3 and 4.6.1).
func icmp6(kind byte, mac net.HardwareAddr, from, to, target netip.Addr) []byte {
	body := []byte{kind, 0, 0, 0, 0, 0, 0, 0}
	if target.IsValid() {
		body = append(body, target.AsSlice()...)
	}
	body = append(append(body, 1, 1), mac...)
	return discovery(from, to, body)
}

// discovery is a message with hop limit 255, without which neighbours ignore it.
func discovery(from, to netip.Addr, body []byte) []byte {
	binary.BigEndian.PutUint16(body[2:], checksum(unix.IPPROTO_ICMPV6, from, to, body))
	packet := ip6(unix.IPPROTO_ICMPV6, from, to, body)
	packet[7] = 255
	return packet
}

const echoRequest = 128 // RFC 4443 section 4.1

// checksum is the Internet checksum of an even number of octets (RFC 9293 section 3.1, RFC 8200 section 8.1).
func checksum(protocol uint32, from, to netip.Addr, segment []byte) uint16 {
	sum := uint32(len(segment)) + protocol
	for _, part := range [][]byte{from.AsSlice(), to.AsSlice(), segment} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// packet is a captured IP packet.
type packet struct {
	from, to netip.Addr
	bytes    []byte
}

// sniff captures all packets of a namespace. The returned function lists those since its last call.
func (s *space) sniff() func() []packet {
	s.t.Helper()
	var fd int
	s.in(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(uint16(unix.ETH_P_ALL)<<8|unix.ETH_P_ALL>>8))
		return err
	})
	s.t.Cleanup(func() { _ = unix.Close(fd) })
	return func() (list []packet) {
		for {
			buf := make([]byte, 2048)
			n, err := unix.Read(fd, buf)
			if err != nil {
				return list
			}
			switch b := buf[:n]; {
			case n >= 20 && b[0]>>4 == 4:
				list = append(list, packet{netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20])), b})
			case n >= 40 && b[0]>>4 == 6:
				list = append(list, packet{netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40])), b})
			}
		}
	}
}

// senders returns the sources of datagrams to port 53.
func (s *space) senders() <-chan netip.Addr {
	s.t.Helper()
	got := make(chan netip.Addr, 64)
	for _, network := range []string{"udp4", "udp6"} {
		var l net.PacketConn
		s.in(func() (err error) { l, err = net.ListenPacket(network, ":53"); return err })
		s.t.Cleanup(func() { _ = l.Close() })
		go func() {
			for buf := make([]byte, 64); ; {
				_, from, err := l.ReadFrom(buf)
				if err != nil {
					return
				}
				got <- from.(*net.UDPAddr).AddrPort().Addr().Unmap().WithZone("")
			}
		}()
	}
	return got
}

// onlyFrom asserts that the next datagrams are from the pod's own address. They are sent after forged ones, whose
// absence therefore means that they were dropped.
func onlyFrom(t *testing.T, got <-chan netip.Addr, own string, datagrams int) {
	t.Helper()
	for datagrams > 0 {
		select {
		case from := <-got:
			if from.String() == own {
				datagrams--
			} else {
				t.Errorf("a packet with source %s passed, want it dropped", from)
			}
		case <-time.After(dialTimeout):
			t.Fatalf("no packet from %s arrived", own)
		}
	}
}
