package datapath

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// frames sends Ethernet frames by a pod's own link.
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

// neighbours counts what the node has noted about a pod's link by itself.
func (v *vpc) neighbours(p *pod, family int) (n int) {
	v.t.Helper()
	list, err := v.host.nl.NeighList(p.links.HostIndex, family)
	v.host.must(err)
	for _, e := range list {
		if e.State != unix.NUD_PERMANENT && !e.IP.IsMulticast() {
			n++
		}
	}
	return n
}

// arpQuestion asks who has an address (RFC 826), as somebody.
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

// icmp6 is a message of neighbour discovery with a source link-layer address
// (RFC 4861 sections 4.1, 4.3 and 4.6.1).
func icmp6(kind byte, mac net.HardwareAddr, from, to, target netip.Addr) []byte {
	body := []byte{kind, 0, 0, 0, 0, 0, 0, 0}
	if target.IsValid() {
		body = append(body, target.AsSlice()...)
	}
	body = append(append(body, 1, 1), mac...)
	binary.BigEndian.PutUint16(body[2:], checksum(unix.IPPROTO_ICMPV6, from, to, body))
	head := []byte{0x60, 0, 0, 0, 0, byte(len(body)), unix.IPPROTO_ICMPV6, 255}
	head = append(append(head, from.AsSlice()...), to.AsSlice()...)
	return append(head, body...)
}

func TestPodsDoNotFillTheNeighbourTable(t *testing.T) {
	const many = 400
	v := newVPC(t)
	v.host.serveTCP(":81")
	b := v.pod(podB, podB6)
	mac := b.links.PodMAC

	var questions [][]byte
	sender := netip.MustParseAddr("10.0.0.128")
	for range many {
		sender = sender.Next()
		questions = append(questions, arpQuestion(mac, sender, netip.MustParseAddr(nodeAddr)))
	}
	b.frames(unix.ETH_P_ARP, questions...)
	b.seenAs(nodeAddr+":81", podB) // came after them
	if n := v.neighbours(b, unix.AF_INET); n != 0 {
		t.Errorf("a pod's ARP requests left %d neighbours, want none", n)
	}

	var hostLink netip.Addr
	within(t, "the node's end has a link-local address", func() bool {
		list, err := v.host.nl.AddrList(linkRef(b.links.HostIndex), unix.AF_INET6)
		if err != nil || len(list) == 0 {
			return false
		}
		hostLink, _ = netip.AddrFromSlice(list[0].IP)
		return list[0].Flags&unix.IFA_F_TENTATIVE == 0
	})
	for _, c := range []struct {
		name   string
		kind   byte
		target netip.Addr
	}{{"neighbour", neighbourSolicitation, hostLink}, {"router", routerSolicitation, netip.Addr{}}} {
		before := v.neighbours(b, unix.AF_INET6)
		questions = nil
		sender = netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 12: c.kind})
		for range many {
			sender = sender.Next()
			questions = append(questions, icmp6(c.kind, mac, sender, hostLink, c.target))
		}
		b.frames(unix.ETH_P_IPV6, questions...)
		b.seenAs("["+nodeAddr6+"]:81", podB6)
		if n := v.neighbours(b, unix.AF_INET6) - before; n >= many/2 {
			t.Errorf("a pod's %s solicitations left %d neighbours of %d, want at most about %d", c.name, n, many, solicitBurst)
		}
	}

	// An answer to a link-local address asks for it.
	before := v.neighbours(b, unix.AF_INET6)
	questions = nil
	for range many {
		sender = sender.Next()
		questions = append(questions, icmp6(echoRequest, mac, sender, hostLink, netip.Addr{}))
	}
	b.frames(unix.ETH_P_IPV6, questions...)
	b.seenAs("["+nodeAddr6+"]:81", podB6)
	if n := v.neighbours(b, unix.AF_INET6) - before; n > 0 {
		t.Errorf("a pod's pings from link-local addresses left %d neighbours, want none", n)
	}
}

const echoRequest = 128 // RFC 4443 section 4.1

// Addresses that are no pod's and that routes alone would let pass, by frames of
// any kind: behind whichever of them a pod could be as many peers as it likes.
func TestSourcesOfNoPodAreDropped(t *testing.T) {
	v := newVPC(t)
	b := v.pod(podB, podB6)
	got := make(chan netip.Addr, 64)
	for _, network := range []string{"udp4", "udp6"} {
		var l net.PacketConn
		v.host.in(func() (err error) { l, err = net.ListenPacket(network, ":53"); return err })
		t.Cleanup(func() { _ = l.Close() })
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
	own := map[uint16][2]string{unix.ETH_P_IP: {podB, nodeAddr}, unix.ETH_P_IPV6: {podB6, nodeAddr6}}
	for kind, forged := range map[uint16][][2]string{
		unix.ETH_P_IP: {{"0.0.0.0", "255.255.255.255"}, {"0.0.0.0", "224.0.0.1"}, {"0.1.2.3", "255.255.255.255"}, {"169.254.1.1", nodeAddr},
			{"127.0.0.1", nodeAddr}, {"255.255.255.255", nodeAddr}, {"224.0.0.1", nodeAddr}, {podA, "224.0.0.1"}, {podA, "255.255.255.255"}},
		unix.ETH_P_IPV6: {{"fe80::9", nodeAddr6}, {"fe80::9", "ff02::1"}, {"::", "ff02::1"}, {"::1", nodeAddr6}, {"::ffff:10.0.0.65", nodeAddr6}, {podA6, "ff02::1"}},
	} {
		for _, f := range append(forged, own[kind]) {
			packet := udp(netip.MustParseAddr(f[0]), netip.MustParseAddr(f[1]))
			b.frames(kind, packet)
			// The same with a tag of VLAN 0, which the kernel takes for none (IEEE 802.1Q).
			b.frames(unix.ETH_P_8021Q, append([]byte{0, 0, byte(kind >> 8), byte(kind)}, packet...))
		}
		for wait := 2; wait > 0; { // come after the forged ones
			select {
			case from := <-got:
				if from.String() == own[kind][0] {
					wait--
				} else {
					t.Errorf("a packet with the source %s passed", from)
				}
			case <-time.After(dialTimeout):
				t.Fatalf("nothing of %s arrived", own[kind][0])
			}
		}
	}
}

// Where route_localnet is on, as kube-proxy may set it, the node takes packets
// for 127.0.0.0/8 from links.
func TestTheNodesLoopbackIsNotForPods(t *testing.T) {
	v := newVPC(t)
	v.host.serveTCP("127.0.0.1:81")
	b := v.pod(podB)
	v.host.sysctl("net/ipv4/conf/all/route_localnet", "1")
	b.sysctl("net/ipv4/conf/all/route_localnet", "1")
	lo, err := netlink.ParseAddr("127.0.0.1/8")
	b.must(err)
	b.must(b.nl.AddrDel(linkRef(1), lo))
	b.route("127.0.0.1/32", gateway4.String(), "eth0")
	b.cannotReach(podB, "127.0.0.1:81")
	v.host.serveTCP(nodeAddr + ":82")
	b.seenAs(nodeAddr+":82", podB)
}

// A packet that connection tracking cannot place is not translated. Outside the
// VPC its source, a pod's own address, must not be seen.
func TestInvalidPacketsDoNotLeaveUntranslated(t *testing.T) {
	v := newVPC(t)
	v.router.serveTCP(":80")
	a := v.pod(podA)
	var sniffer int
	v.router.in(func() (err error) {
		sniffer, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
		return err
	})
	t.Cleanup(func() { _ = unix.Close(sniffer) })

	// A reset of no connection (RFC 9293 section 3.1).
	reset := []byte{0x99, 0x99, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x04, 0, 0, 0, 0, 0, 0}
	a.in(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		for _, to := range []string{internet, peer} {
			binary.BigEndian.PutUint16(reset[16:], 0)
			binary.BigEndian.PutUint16(reset[16:], checksum(unix.IPPROTO_TCP, netip.MustParseAddr(podA), netip.MustParseAddr(to), reset))
			if err := unix.Sendto(fd, reset, 0, &unix.SockaddrInet4{Addr: netip.MustParseAddr(to).As4()}); err != nil {
				return err
			}
		}
		return nil
	})
	a.seenAs(internet+":80", nodeAddr) // came after them
	inside := false
	buf := make([]byte, 256)
	for {
		n, err := unix.Read(sniffer, buf)
		if err != nil {
			break
		}
		if n < 20 || netip.AddrFrom4([4]byte(buf[12:16])).String() != podA {
			continue
		}
		switch to := netip.AddrFrom4([4]byte(buf[16:20])).String(); to {
		case internet:
			t.Errorf("the internet saw a packet of %s", podA)
		case peer:
			inside = true
		}
	}
	if !inside {
		t.Errorf("a packet to %s, where no translation is needed, was dropped too", peer)
	}
}

// Neighbour and listener discovery is not tracked, so not translated, wherever it
// goes.
func TestUntrackedPacketsDoNotLeaveUntranslated(t *testing.T) {
	v := newVPC(t, func(c *Config) { c.PrimaryIPv6 = netip.MustParseAddr(nodeAddr6) })
	v.router.serveTCP(":80")
	b := v.pod(podB6)
	var sniffer int
	v.router.in(func() (err error) {
		sniffer, err = unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_ICMPV6)
		return err
	})
	t.Cleanup(func() { _ = unix.Close(sniffer) })
	from, to := netip.MustParseAddr(podB6), netip.MustParseAddr(internet6)
	for _, kind := range []byte{echoRequest, 130, 131, 132, routerSolicitation, neighbourSolicitation, neighbourAdvertisement, 143} {
		b.frames(unix.ETH_P_IPV6, icmp6(kind, b.links.PodMAC, from, to, to))
	}
	b.seenAs("["+internet6+"]:80", nodeAddr6) // came after them
	translated := false
	for buf := make([]byte, 256); ; {
		_, sender, err := unix.Recvfrom(sniffer, buf, 0)
		if err != nil {
			break
		}
		switch netip.AddrFrom16(sender.(*unix.SockaddrInet6).Addr).String() {
		case podB6:
			t.Errorf("the internet saw a message of type %d of %s", buf[0], podB6)
		case nodeAddr6:
			translated = translated || buf[0] == echoRequest
		}
	}
	if !translated {
		t.Error("the pod's ping did not arrive")
	}
}

// checksum is that of a protocol over IP, of what has an even number of octets
// (RFC 9293 section 3.1, RFC 8200 section 8.1).
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

func TestMaxConnections(t *testing.T) {
	const most = 5
	v := newVPC(t, func(c *Config) { c.MaxConnections = most })
	for _, family := range []struct{ a, b, to string }{{podA, podB, nodeAddr}, {podA6, podB6, nodeAddr6}} {
		a, b := v.pod(family.a), v.pod(family.b)
		var l net.Listener
		v.host.in(func() (err error) { l, err = net.Listen("tcp", net.JoinHostPort(family.to, "0")); return err })
		t.Cleanup(func() { _ = l.Close() })
		dial := func(p *pod, patience time.Duration) (c net.Conn, err error) {
			p.in(func() error {
				c, err = net.DialTimeout("tcp", l.Addr().String(), patience)
				return nil
			})
			return c, err
		}
		var open []net.Conn
		for range most {
			c, err := dial(b, dialTimeout)
			if err != nil {
				t.Fatalf("connection %d of %d: %v", len(open)+1, most, err)
			}
			open = append(open, c)
		}
		if c, err := dial(b, 300*time.Millisecond); err == nil {
			_ = c.Close()
			t.Errorf("%s opened more than %d connections", family.b, most)
		} else if timeout := net.Error(nil); !errors.As(err, &timeout) || !timeout.Timeout() {
			t.Errorf("connection %d of %s: %v, want it to be dropped", most+1, family.b, err)
		}
		c, err := dial(a, dialTimeout)
		if err != nil {
			t.Errorf("%s may not open its first connection: %v", family.a, err)
		} else {
			_ = c.Close()
		}
		if _, err := open[0].Write([]byte("x")); err != nil {
			t.Errorf("an open connection of %s ended: %v", family.b, err)
		}
		for _, c := range open {
			_ = c.Close()
		}
	}
}

// What goes to a link-local address stays on a link; a router that passes it on
// asks for the address, and notes that it did.
func TestPodsDoNotFillTheNeighbourTableByDestinations(t *testing.T) {
	const many = 400
	v := newVPC(t)
	v.host.serveTCP(":81")
	b := v.pod(podB, podB6)
	v.host.ready(b.want.HostIfName)
	before := v.neighbours(b, unix.AF_INET6)
	var packets [][]byte
	to := netip.MustParseAddr("fe80::1:0")
	for range many {
		to = to.Next()
		packets = append(packets, udp(netip.MustParseAddr(podB6), to), icmp6(neighbourAdvertisement, b.links.PodMAC, netip.MustParseAddr(podB6), to, to))
	}
	b.frames(unix.ETH_P_IPV6, packets...)
	b.seenAs("["+nodeAddr6+"]:81", podB6) // came after them
	if n := v.neighbours(b, unix.AF_INET6) - before; n > 0 {
		t.Errorf("a pod's packets to %d link-local addresses left %d neighbours, want none", many, n)
	}
}
