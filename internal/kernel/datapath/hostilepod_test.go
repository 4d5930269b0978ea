package datapath

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// neighbours counts the neighbour entries that the node learned from a pod's link.
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

func TestPodsCannotFillNeighbourTable(t *testing.T) {
	const many = 400
	v := newVPC(t)
	v.host.serveTCP(":81")
	b := v.pod(podB, podB6)
	v.host.ready(b.want.HostIfName)
	mac, own := b.links.PodMAC, netip.MustParseAddr(podB6)
	list, err := v.host.nl.AddrList(rtnl.LinkRef(b.links.HostIndex), unix.AF_INET6)
	b.must(err)
	node, _ := netip.AddrFromSlice(list[0].IP)
	linkLocals := func(kind byte, i int) netip.Addr {
		return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 12: kind, 14: byte(i >> 8), 15: byte(i)})
	}
	from := func(kind byte, target netip.Addr) func(i int) [][]byte {
		return func(i int) [][]byte { return [][]byte{icmp6(kind, mac, linkLocals(kind, i), node, target)} }
	}
	for _, c := range []struct {
		name    string
		family  int
		kind    uint16
		packets func(i int) [][]byte
		most    int // highest permitted number of new neighbour entries
	}{
		{"ARP requests", unix.AF_INET, unix.ETH_P_ARP, func(i int) [][]byte {
			return [][]byte{arpQuestion(mac, netip.AddrFrom4([4]byte{10, 0, byte((128 + i) >> 8), byte(128 + i)}), netip.MustParseAddr(nodeAddr))}
		}, 0},
		{"neighbour solicitations", unix.AF_INET6, unix.ETH_P_IPV6, from(NeighbourSolicitation, node), many/2 - 1}, // about solicitBurst
		{"router solicitations", unix.AF_INET6, unix.ETH_P_IPV6, from(routerSolicitation, netip.Addr{}), many/2 - 1},
		{"pings", unix.AF_INET6, unix.ETH_P_IPV6, from(echoRequest, netip.Addr{}), 0}, // a reply to a link-local address would need a neighbour entry
		// A packet to a link-local address stays on its link. A router that forwarded it would resolve the address
		// and add a neighbour entry.
		{"packets to link-local addresses", unix.AF_INET6, unix.ETH_P_IPV6, func(i int) [][]byte {
			to := linkLocals(1, i)
			return [][]byte{udp(own, to), icmp6(NeighbourAdvertisement, mac, own, to, to)}
		}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, b := v.as(t), b.as(t)
			before := v.neighbours(b, c.family)
			var packets [][]byte
			for i := range many {
				packets = append(packets, c.packets(i+1)...)
			}
			b.frames(c.kind, packets...)
			b.seenAs(nodeAddr+":81", podB) // came after them
			b.seenAs("["+nodeAddr6+"]:81", podB6)
			if n := v.neighbours(b, c.family) - before; n > c.most {
				t.Errorf("%d packets left %d neighbour entries, want at most %d", many, n, c.most)
			}
		})
	}
}

// Sources that are not the pod's and that the reverse path check accepts, in frames of any kind. With them a pod
// could impersonate any number of peers.
func TestForgedSourcesAreDropped(t *testing.T) {
	v := newVPC(t)
	b := v.pod(podB, podB6)
	got := v.host.senders()
	own := map[uint16][2]string{unix.ETH_P_IP: {podB, nodeAddr}, unix.ETH_P_IPV6: {podB6, nodeAddr6}}
	for kind, forged := range map[uint16][][2]string{
		unix.ETH_P_IP: {{"0.0.0.0", "255.255.255.255"}, {"0.0.0.0", "224.0.0.1"}, {"0.1.2.3", "255.255.255.255"}, {"169.254.1.1", nodeAddr},
			{"127.0.0.1", nodeAddr}, {"255.255.255.255", nodeAddr}, {"224.0.0.1", nodeAddr}, {podA, "224.0.0.1"}, {podA, "255.255.255.255"}},
		unix.ETH_P_IPV6: {{"fe80::9", nodeAddr6}, {"fe80::9", "ff02::1"}, {"::", "ff02::1"}, {"::1", nodeAddr6}, {"::ffff:10.0.0.65", nodeAddr6}, {podA6, "ff02::1"}},
	} {
		for _, f := range append(forged, own[kind]) {
			packet := udp(netip.MustParseAddr(f[0]), netip.MustParseAddr(f[1]))
			b.frames(kind, packet)
			// The same with a tag of VLAN 0, which the kernel treats as untagged (IEEE 802.1Q).
			b.frames(unix.ETH_P_8021Q, append([]byte{0, 0, byte(kind >> 8), byte(kind)}, packet...))
		}
		onlyFrom(t, got, own[kind][0], 2)
	}
}

// With route_localnet on, as kube-proxy may set it, the node accepts packets to 127.0.0.0/8 from links.
func TestPodsCannotReachNodeLoopback(t *testing.T) {
	v := newVPC(t)
	v.host.serveTCP("127.0.0.1:81")
	b := v.pod(podB)
	v.host.sysctl("net/ipv4/conf/all/route_localnet", "1")
	b.sysctl("net/ipv4/conf/all/route_localnet", "1")
	lo, err := netlink.ParseAddr("127.0.0.1/8")
	b.must(err)
	b.must(b.nl.AddrDel(rtnl.LinkRef(1), lo))
	b.route("127.0.0.1/32", gateway4.String(), "eth0")
	b.cannotReach(podB, "127.0.0.1:81")
	v.host.serveTCP(nodeAddr + ":82")
	b.seenAs(nodeAddr+":82", podB)
}

// An invalid packet is not translated. It must not leave the VPC with the pod's own address.
func TestInvalidPacketsDoNotLeaveUntranslated(t *testing.T) {
	v := newVPC(t)
	v.router.serveTCP(":80")
	a := v.pod(podA)
	seen := v.router.sniff()

	// A reset that belongs to no connection (RFC 9293 section 3.1).
	reset := []byte{0x99, 0x99, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x04, 0, 0, 0, 0, 0, 0}
	for _, to := range addrs(internet, peer) {
		from := netip.MustParseAddr(podA)
		binary.BigEndian.PutUint16(reset[16:], 0)
		binary.BigEndian.PutUint16(reset[16:], checksum(unix.IPPROTO_TCP, from, to, reset))
		a.frames(unix.ETH_P_IP, ip4(unix.IPPROTO_TCP, from, to, 0, nil, reset))
	}
	a.seenAs(internet+":80", nodeAddr) // sent after the packets above
	inside := false
	for _, p := range seen() {
		if p.from.String() == podA && p.to.String() == internet {
			t.Errorf("a packet of %s reached the internet", podA)
		}
		inside = inside || p.from.String() == podA && p.to.String() == peer
	}
	if !inside {
		t.Errorf("a packet to %s, which needs no translation, was dropped", peer)
	}
}

// Neighbour and listener discovery is not tracked and so not translated, whatever its destination.
func TestUntrackedPacketsDoNotLeaveUntranslated(t *testing.T) {
	v := newVPC(t, func(v *vpc) { v.uplinks.PrimaryIPv6 = netip.MustParseAddr(nodeAddr6) })
	v.router.serveTCP(":80")
	b := v.pod(podB6)
	seen := v.router.sniff()
	from, to := netip.MustParseAddr(podB6), netip.MustParseAddr(internet6)
	for _, kind := range []byte{echoRequest, 130, 131, 132, routerSolicitation, NeighbourSolicitation, NeighbourAdvertisement, 143} {
		b.frames(unix.ETH_P_IPV6, icmp6(kind, b.links.PodMAC, from, to, to))
	}
	b.seenAs("["+internet6+"]:80", nodeAddr6) // sent after the packets above
	translated := false
	for _, p := range seen() {
		if p.to != to || p.bytes[6] != unix.IPPROTO_ICMPV6 {
			continue
		}
		if p.from == from {
			t.Errorf("an ICMPv6 message of type %d of %s reached the internet", p.bytes[40], podB6)
		}
		translated = translated || p.from.String() == nodeAddr6 && p.bytes[40] == echoRequest
	}
	if !translated {
		t.Error("the pod's ping did not arrive")
	}
}

func TestMaxConnections(t *testing.T) {
	const most = 5
	v := newVPC(t, func(v *vpc) { v.config.MaxConnections = most })
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
			t.Errorf("connection %d of %s: error = %v, want a timeout", most+1, family.b, err)
		}
		c, err := dial(a, dialTimeout)
		if err != nil {
			t.Errorf("first connection of %s: %v", family.a, err)
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

// A pod that changes its own link does not affect other pods, and DetachPod and ReapLinks still remove its routes and link.
func TestPodChangingItsLinkAffectsNoOtherPod(t *testing.T) {
	v := newVPC(t)
	other := v.pod(podA, podA6)
	v.host.serveTCP(":81")
	bystander := newSpace(t, "bystander")
	for name, command := range map[string]string{
		"link renamed":                    "ip link set eth0 down; ip link set eth0 name lo0; ip link set lo0 up",
		"link deleted":                    "ip link del eth0",
		"link replaced":                   "ip link del eth0; ip link add eth0 type veth peer name bthaaaaaaaaaaaa; ip link set eth0 up",
		"link moved to another namespace": "ip link set eth0 netns " + bystander.name,
		"MAC of another pod":              "ip link set eth0 address " + other.links.PodMAC.String(),
		"MAC of the node":                 "ip link set eth0 address " + v.host.link("eth0").Attrs().HardwareAddr.String(),
		"small MTU":                       "ip link set eth0 mtu 68",
		"large MTU":                       "ip link set eth0 mtu 65535",
		"addresses flushed":               "ip addr flush dev eth0; ip -6 addr flush dev eth0",
		"addresses of another pod and of the node": "ip addr add " + podA + "/32 dev eth0; ip addr add " + nodeAddr + "/32 dev eth0",
		"proxy ARP and forwarding":                 "sysctl -qw net.ipv4.conf.all.proxy_arp=1 net.ipv6.conf.all.forwarding=1 net.ipv4.ip_forward=1",
		"flaps":                                    strings.Repeat("ip link set eth0 down; ip link set eth0 up; ", 8) + "ip link",
	} {
		t.Run(name, func(t *testing.T) {
			v, other := v.as(t), other.as(t)
			p := v.pod(podB, podB6)
			for one := range strings.SplitSeq(command, "; ") {
				p.run(one)
			}
			if _, err := v.node.Repair(ctx, v.wanted(p, other)); err != nil {
				t.Log("repair:", err) // a pod that prevents its own repair harms only itself
			}
			other.seenAs(nodeAddr+":81", podA)
			other.seenAs("["+nodeAddr6+"]:81", podA6)
			for range 2 {
				if err := v.node.DetachPod(ctx, p.want.HostIfName, p.want.Addrs()); err != nil {
					t.Error(err)
				}
				if err := v.node.ReapLinks(ctx, []string{p.want.HostIfName}); err != nil {
					t.Error(err)
				}
			}
			inv := v.inventory()
			if len(inv.Links) != 1 || len(inv.Routes) != 2 {
				t.Errorf("after the removal: links %v, routes %v, want those of the other pod only", inv.Links, inv.Routes)
			}
			if list, err := bystander.nl.LinkList(); err != nil || len(list) != 1 {
				t.Errorf("links of the bystander = %v, %v, want lo only", list, err)
			}
		})
	}
}

// With metadata blocked, no packet of a pod reaches the metadata service, whether in fragments, with options,
// extension headers or source routing, or in a tunnel to the node. Nor does it leave the VPC with the pod's own address.
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
			ip4(unix.IPPROTO_UDP, from4, to, 1, nil, datagram[8:]),                        // never completed
			ip4(unix.IPPROTO_UDP, from4, to, 0, []byte{148, 4, 0, 0}, datagram),           // router alert
			ip4(unix.IPPROTO_UDP, from4, to, 0, []byte{7, 7, 4, 0, 0, 0, 0, 0}, datagram)) // record route
	}
	for _, to := range []netip.Addr{metadata[1], outside6} {
		datagram := udp(from6, to)[40:]
		pad := func(next byte) []byte { return []byte{next, 0, 1, 4, 0, 0, 0, 0} } // an empty options header
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
			ip6(unix.IPPROTO_FRAGMENT, from6, to, fragment(unix.IPPROTO_UDP, 64, 0), datagram), // never completed
			ip6(unix.IPPROTO_IPV6, from6, node6, udp(from6, to)),
			ip6(unix.IPPROTO_ROUTING, from6, to, routing(0), datagram))
		v4 = append(v4, ip4(unix.IPPROTO_IPV6, from4, node4, 0, nil, udp(from6, to)))
	}
	p.frames(unix.ETH_P_IP, v4...)
	p.frames(unix.ETH_P_IPV6, v6...)
	p.seenAs(internet+":80", nodeAddr) // sent after the packets above
	p.seenAs("["+internet6+"]:80", nodeAddr6)
	for _, s := range seen() {
		if slices.Contains(metadata, s.to) {
			t.Errorf("a packet from %s to the metadata service left the node: % x", s.from, s.bytes)
		}
		if (s.to == internet4 || s.to == outside6) && (s.from == from4 || s.from == from6) {
			t.Errorf("a packet of %s reached the internet: % x", s.from, s.bytes)
		}
	}
}
