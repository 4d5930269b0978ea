package policytable

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/nft"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/policy"
)

// attack is packets that somebody sends, whatever a pod's stack would send itself.
type attack struct {
	name    string
	from    netip.Addr
	packets [][]byte // the last one has to arrive, or not
	arrives bool     // with policies; it always does without
}

// Nothing gets round policies: not by fragments, extension headers, encapsulation, another family, host ports, the node's addresses,
// multicast, forged errors, or packets from the midst of connections. Each attack arrives while there are no policies.
func TestNothingGetsRoundPolicies(t *testing.T) {
	victim, jailed, friend, stranger := pair("10.0.1.2", "fd00:1::2"), pair("10.0.2.2", "fd00:2::2"), pair("10.0.3.2", "fd00:3::2"), pair("10.0.4.2", "fd00:4::2")
	w := newWorld(t, [][2]netip.Addr{victim, jailed, friend, stranger})
	table := New(w.node)
	r := &redTeam{w: w, seen: map[string]bool{}}
	for _, a := range []netip.Addr{victim[0], jailed[0], friend[0], stranger[0]} {
		must(t, ns.Do(w.hosts[a].path, func() error { return r.sniff(t) }))
	}
	node := pair("10.0.2.1", "fd00:2::1") // its addresses on the link to jailed
	must(t, rtnl.InNetns(w.node, func() error { return r.listen(t) }))
	must(t, r.hostPort(netip.AddrPortFrom(node[0], 8080), netip.AddrPortFrom(victim[0], 80)))

	toPort80 := []policy.Ports{ // with another peer and port, so that it takes chains and sets
		{Protocol: unix.IPPROTO_UDP, First: 80, Last: 80}, {Protocol: unix.IPPROTO_UDP, First: 90, Last: 91}, {Protocol: unix.IPPROTO_TCP, First: 80, Last: 80},
	}
	only := func(d policy.Direction) *policy.Policy {
		p := &policy.Policy{Ref: policy.Ref{Namespace: "red", Name: d.String()}, Tier: policy.Namespaced}
		p.Isolates[d] = true
		p.Rules[d] = []policy.Rule{{Blocks: []netip.Prefix{netip.PrefixFrom(friend[0], 32), netip.PrefixFrom(friend[1], 128)}, Peers: []policy.SetID{"nobody"}, Ports: toPort80}}
		return p
	}
	gateway := []netip.AddrPort{netip.AddrPortFrom(stranger[0], 5555), netip.AddrPortFrom(stranger[1], 5555)}
	pods := []Pod{
		{Addrs: victim[:], Policies: []*policy.Policy{only(policy.Ingress)}},
		{Addrs: jailed[:], Policies: []*policy.Policy{only(policy.Ingress), only(policy.Egress)}, Tunnels: gateway},
	}

	var attacks []attack
	add := func(name string, from netip.Addr, arrives bool, packets ...[]byte) {
		attacks = append(attacks, attack{name, from, packets, arrives})
	}
	for i, family := range []string{"IPv4 ", "IPv6 "} {
		v, j, f, s, n := victim[i], jailed[i], friend[i], stranger[i], node[i]
		add(family+"allowed", f, true, udp(f, v, 80))
		add(family+"another port", f, false, udp(f, v, 22))
		add(family+"a stranger", s, false, udp(s, v, 80))
		add(family+"out of the jail", j, false, udp(j, s, 80))
		add(family+"out of the jail to the friend", j, true, udp(j, f, 80))
		add(family+"to the jail's node", j, false, udp(j, n, 80))
		add(family+"fragments", s, false, fragments(udp(s, v, 80))...)
		add(family+"fragments of another port", f, false, fragments(udp(f, v, 22))...)
		add(family+"fragments of what is allowed", f, true, fragments(udp(f, v, 80))...)
		add(family+"IP in IP", f, false, packet(f, v, map[bool]byte{true: unix.IPPROTO_IPIP, false: unix.IPPROTO_IPV6}[i == 0], udp(s, v, 80)))
		add(family+"the other family in IP", f, false, packet(f, v, map[bool]byte{true: unix.IPPROTO_IPV6, false: unix.IPPROTO_IPIP}[i == 0], udp(stranger[1-i], victim[1-i], 80)))
		add(family+"GRE", f, false, packet(f, v, unix.IPPROTO_GRE, append([]byte{0, 0, 8, 0}, udp(s, v, 80)...)))
		add(family+"in UDP", f, false, udp(f, v, 4789, udp(s, v, 80)...))
		add(family+"no SYN", s, false, tcp(s, v, 80, ack))
		add(family+"a SYN, and then no SYN", s, false, tcp(s, v, 80, syn), tcp(s, v, 80, ack))
		add(family+"the answer to nothing", s, false, tcp(s, v, 80, syn|ack))
		add(family+"a protocol without ports", f, false, packet(f, v, 253, nil))
		add(family+"a forged error", s, false, unreachable(s, v, udp(v, s, 9)))
		add(family+"an echo", s, false, echo(s, v))
		// Tunnels of an Egress are judged by what is inside.
		add(family+"a tunnel to the friend", j, true, udp(j, s, 5555, udp(j, f, 80)...))
		add(family+"a tunnel to another port", j, false, udp(j, s, 5555, udp(j, f, 22)...))
		add(family+"a tunnel to another", j, false, udp(j, s, 5555, udp(j, v, 80)...))
		add(family+"a tunnel in an established flow", j, false, udp(j, s, 5555, udp(j, f, 80)...), udp(j, s, 5555, udp(j, v, 80)...))
		add(family+"a tunnel to no gateway", j, false, udp(j, v, 5555, udp(j, f, 80)...))
		add(family+"a tunnel with nothing in it", j, false, udp(j, s, 5555))
		add(family+"a tunnel with fragments in it", j, false, udp(j, s, 5555, fragments(udp(j, f, 80))[0]...))
		add(family+"a tunnel in a tunnel", j, false, udp(j, s, 5555, packet(j, f, map[bool]byte{true: unix.IPPROTO_IPIP, false: unix.IPPROTO_IPV6}[i == 0], udp(j, f, 80))...))
		add(family+"an answer in a tunnel", s, true, udp(s, j, 5555, udp(f, j, 80)...))
		add(family+"from no gateway", f, false, udp(f, j, 5555, udp(f, j, 80)...))
	}
	v, j, f, s := victim[1], jailed[1], friend[1], stranger[1]
	for name, header := range map[string]byte{"hop-by-hop options": unix.IPPROTO_HOPOPTS, "destination options": unix.IPPROTO_DSTOPTS, "a routing header": unix.IPPROTO_ROUTING} {
		add("IPv6 "+name, s, false, extended(udp(s, v, 80), header))
		add("IPv6 "+name+" before another port", f, false, extended(udp(f, v, 22), header))
		add("IPv6 "+name+" before what is allowed", f, true, extended(udp(f, v, 80), header))
		add("IPv6 "+name+" in a tunnel", j, false, udp(j, s, 5555, extended(udp(j, f, 80), header)...))
	}
	options := udp(jailed[0], friend[0], 80)
	options = append(append(slices.Clone(options[:20]), 1, 1, 1, 1), options[20:]...)
	options[0] = 0x46
	add("IPv4 options in a tunnel", jailed[0], false, udp(jailed[0], stranger[0], 5555, options...))
	add("IPv4 in IPv6 by a tunnel", jailed[1], false, udp(jailed[1], stranger[1], 5555, udp(jailed[0], friend[0], 80)...))
	add("IPv6 from the node's own address", s, false, udp(netip.MustParseAddr("fd00:1::1"), v, 80))
	mapped := netip.AddrFrom16(friend[0].As16())
	add("from an IPv4-mapped address", s, false, udp(mapped, v, 80))
	add("a host port", stranger[0], false, udp(stranger[0], node[0], 8080))
	add("a host port, by the friend", friend[0], true, udp(friend[0], node[0], 8080))
	add("a host port, out of the jail", jailed[0], false, udp(jailed[0], node[0], 8080))
	add("IPv4 multicast", jailed[0], false, udp(jailed[0], netip.MustParseAddr("224.0.0.1"), 80))
	add("IPv6 multicast", jailed[1], false, udp(jailed[1], netip.MustParseAddr("ff02::1"), 80))

	for number := range attacks {
		a := &attacks[number]
		last := &a.packets[len(a.packets)-1]
		*last = bytes.ReplaceAll(*last, []byte(marker), fmt.Appendf(nil, "attack%02d", number%100))
		for _, p := range a.packets {
			seal(p)
		}
	}
	run := func(a attack, number int, policies bool) {
		mark := fmt.Sprintf("attack%02d", number%100)
		must(t, rtnl.InNetns(w.node, func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }))
		r.forget(mark)
		var before uint64
		if policies {
			before = refused(t, table)
		}
		for i, p := range a.packets {
			if policies && i > 0 && len(p) > 0 && !a.arrives && !isFragment(p) && !isTunnel(a) { // what came before was refused too
				before = r.settle(t, table, before)
			}
			must(t, ns.Do(w.hosts[a.from].path, func() error { return sendRaw(a.from, p) }))
		}
		deadline := time.Now().Add(patience)
		for {
			arrived := r.arrived(mark)
			if arrived && (!policies || a.arrives) {
				return
			}
			if arrived {
				t.Errorf("%s: arrived", a.name)
				return
			}
			if policies && refused(t, table) > before {
				if a.arrives {
					t.Errorf("%s: refused", a.name)
				}
				return
			}
			if time.Now().After(deadline) {
				t.Errorf("%s: neither arrived nor refused, with policies: %t", a.name, policies)
				return
			}
			time.Sleep(time.Millisecond) //nolint:forbidigo // packets that real namespaces have on their way
		}
	}
	for number, a := range attacks {
		run(a, number, false)
	}
	must(t, table.Apply(pods, noElements, nil))
	for number, a := range attacks {
		run(a, number, true)
	}
	must(t, table.Remove())
}

// redTeam watches what arrives.
type redTeam struct {
	w    *world
	mu   sync.Mutex
	seen map[string]bool
}

func (r *redTeam) note(data []byte) {
	i := bytes.Index(data, []byte("attack"))
	for ; i >= 0 && len(data) >= i+len(marker); i = next(data, i) {
		r.mu.Lock()
		r.seen[string(data[i:i+len(marker)])] = true
		r.mu.Unlock()
	}
}

func next(data []byte, i int) int {
	j := bytes.Index(data[i+1:], []byte("attack"))
	if j < 0 {
		return -1
	}
	return i + 1 + j
}

func (r *redTeam) arrived(mark string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen[mark]
}

func (r *redTeam) forget(mark string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.seen, mark)
}

// settle waits until the table has refused one packet more.
func (r *redTeam) settle(t *testing.T, table *Table, before uint64) uint64 {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		if n := refused(t, table); n > before {
			return n
		}
		if time.Now().After(deadline) {
			t.Fatal("the first packet was not refused")
		}
	}
}

// sniff notes all frames that come to the calling thread's namespace.
func (r *redTeam) sniff(t *testing.T) error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM, int(binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})))
	if err != nil {
		return err
	}
	r.receive(t, fd, func(from unix.Sockaddr) bool {
		l, ok := from.(*unix.SockaddrLinklayer)
		return ok && l.Pkttype != unix.PACKET_OUTGOING
	})
	return nil
}

// listen notes datagrams that come to sockets of the calling thread's namespace, behind all hooks.
func (r *redTeam) listen(t *testing.T) error {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		fd, err := unix.Socket(family, unix.SOCK_RAW, unix.IPPROTO_UDP)
		if err != nil {
			return err
		}
		r.receive(t, fd, func(unix.Sockaddr) bool { return true })
	}
	return nil
}

func (r *redTeam) receive(t *testing.T, fd int, counts func(unix.Sockaddr) bool) {
	done := make(chan struct{})
	timeout := unix.Timeval{Usec: 100_000}
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout)
	var running sync.WaitGroup
	running.Go(func() {
		buffer := make([]byte, 4096)
		for {
			select {
			case <-done:
				return
			default:
			}
			if n, from, err := unix.Recvfrom(fd, buffer, 0); err == nil && counts(from) {
				r.note(buffer[:n])
			}
		}
	})
	t.Cleanup(func() {
		close(done)
		running.Wait()
		_ = unix.Close(fd)
	})
}

// hostPort translates what comes to a port of the node.
func (r *redTeam) hostPort(from, to netip.AddrPort) error {
	conn, err := nftables.New(nftables.WithNetNSFd(int(r.w.node)))
	if err != nil {
		return err
	}
	table := nft.Table{Family: nftables.TableFamilyIPv4, Name: "host-ports", Chains: []nft.Chain{
		nft.Base("in", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest, nft.NewRule("to the pod",
			nft.DestinationIs(from.Addr()), nft.UDPTo(from.Port()), nft.Exprs{
				&expr.Immediate{Register: 1, Data: to.Addr().AsSlice()},
				&expr.Immediate{Register: 2, Data: binary.BigEndian.AppendUint16(nil, to.Port())},
				&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2, Specified: true},
			})),
	}}
	if err := table.Replace(conn); err != nil {
		return err
	}
	return conn.Flush()
}

// sendRaw sends a whole packet from the calling thread's namespace.
func sendRaw(from netip.Addr, p []byte) error {
	family := unix.AF_INET
	var to unix.Sockaddr
	if p[0]>>4 == 6 {
		family = unix.AF_INET6
		address := &unix.SockaddrInet6{Addr: [16]byte(p[24:])}
		if netip.AddrFrom16(address.Addr).IsMulticast() {
			link, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			address.ZoneId = uint32(link.Attrs().Index)
		}
		to = address
	} else {
		to = &unix.SockaddrInet4{Addr: [4]byte(p[16:])}
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if family == unix.AF_INET && p[16]>>4 == 0xe {
		if err := unix.SetsockoptInet4Addr(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_IF, from.As4()); err != nil {
			return err
		}
	}
	if err := unix.Sendto(fd, p, 0, to); err != nil {
		return fmt.Errorf("send %x: %w", p, err)
	}
	return nil
}

// marker is in each packet.
const marker = "attackXX"

const (
	ack        = 0x10
	sourcePort = 5555 // as of tunnels
)

// packet is an IP packet.
func packet(from, to netip.Addr, protocol byte, content []byte) []byte {
	content = append(content, marker...)
	if from.Is4() {
		b := []byte{0x45, 0, 0, 0, 0, 1, 0, 0, 64, protocol, 0, 0}
		b = append(append(append(b, from.AsSlice()...), to.AsSlice()...), content...)
		binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
		return b
	}
	b := binary.BigEndian.AppendUint16([]byte{6 << 4, 0, 0, 0}, uint16(len(content)))
	b = append(append(append(b, protocol, 64), from.AsSlice()...), to.AsSlice()...)
	return append(b, content...)
}

// seal sets the checksum of what is in a whole packet.
func seal(p []byte) {
	header, protocol := 20, p[9]
	if p[0]>>4 == 6 {
		header, protocol = 40, p[6]
	}
	at, there := map[byte]int{unix.IPPROTO_UDP: 6, unix.IPPROTO_TCP: 16, unix.IPPROTO_ICMP: 2, unix.IPPROTO_ICMPV6: 2}[protocol]
	if !there || isFragment(p) || len(p)%2 != 0 {
		return
	}
	n := 4 // bytes of an address
	if header == 40 {
		n = 16
	}
	source, _ := netip.AddrFromSlice(p[header-2*n : header-n])
	destination, _ := netip.AddrFromSlice(p[header-n : header])
	binary.BigEndian.PutUint16(p[header+at:], 0)
	if protocol == unix.IPPROTO_ICMP { // RFC 792 has no pseudo header
		var total uint32
		for i := header; i < len(p); i += 2 {
			total += uint32(binary.BigEndian.Uint16(p[i:]))
		}
		for total > 0xffff {
			total = total>>16 + total&0xffff
		}
		binary.BigEndian.PutUint16(p[header+at:], ^uint16(total))
		return
	}
	f := policy.Flow{Source: source, Destination: destination, Protocol: protocol}
	binary.BigEndian.PutUint16(p[header+at:], checksum(f, p[header:]))
}

func udp(from, to netip.Addr, port uint16, content ...byte) []byte {
	b := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, sourcePort), port)
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(content)+len(marker)))
	return packet(from, to, unix.IPPROTO_UDP, append(append(b, 0, 0), content...))
}

func tcp(from, to netip.Addr, port uint16, flags byte) []byte {
	b := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, sourcePort), port)
	return packet(from, to, unix.IPPROTO_TCP, append(b, 0, 0, 0, 1, 0, 0, 0, 1, 5<<4, flags, 0xff, 0xff, 0, 0, 0, 0))
}

func echo(from, to netip.Addr) []byte {
	if from.Is4() {
		return packet(from, to, unix.IPPROTO_ICMP, []byte{8, 0, 0, 0, 0, 1, 0, 1})
	}
	return packet(from, to, unix.IPPROTO_ICMPV6, []byte{128, 0, 0, 0, 0, 1, 0, 1})
}

// unreachable is an error about a packet that was never sent.
func unreachable(from, to netip.Addr, about []byte) []byte {
	if from.Is4() {
		return packet(from, to, unix.IPPROTO_ICMP, append([]byte{3, 3, 0, 0, 0, 0, 0, 0}, about...))
	}
	return packet(from, to, unix.IPPROTO_ICMPV6, append([]byte{1, 4, 0, 0, 0, 0, 0, 0}, about...))
}

// extended puts an extension header before what is in an IPv6 packet.
func extended(p []byte, header byte) []byte {
	content := []byte{p[6], 0, 1, 4, 0, 0, 0, 0} // padding
	if header == unix.IPPROTO_ROUTING {
		content = []byte{p[6], 0, 253, 0, 0, 0, 0, 0} // of a type for experiments, without segments left
	}
	b := append(slices.Clone(p[:40]), append(content, p[40:]...)...)
	b[6] = header
	binary.BigEndian.PutUint16(b[4:], uint16(len(b)-40))
	return b
}

// fragments are two of a packet, of which the second has the marker.
func fragments(p []byte) [][]byte {
	header := 20
	if p[0]>>4 == 6 {
		header = 40
	}
	part := func(content []byte, offset uint16, more bool) []byte {
		b := append(slices.Clone(p[:header]), content...)
		if more {
			offset |= map[bool]uint16{true: 0x2000, false: 1}[header == 20]
		}
		if header == 20 {
			binary.BigEndian.PutUint16(b[6:], offset)
			binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
			return b
		}
		fragment := append([]byte{p[6], 0}, binary.BigEndian.AppendUint16(nil, offset)...)
		b = append(slices.Clone(p[:header]), append(append(fragment, 0, 0, 0, 7), content...)...)
		b[6] = unix.IPPROTO_FRAGMENT
		binary.BigEndian.PutUint16(b[4:], uint16(len(b)-40))
		return b
	}
	second := map[bool]uint16{true: 1, false: 8}[header == 20] // in units of eight bytes, and in bytes
	return [][]byte{part(p[header:header+8], 0, true), part(p[header+8:], second, false)}
}

func isFragment(p []byte) bool {
	return p[0]>>4 == 4 && binary.BigEndian.Uint16(p[6:])&0x3fff != 0 || p[0]>>4 == 6 && p[6] == unix.IPPROTO_FRAGMENT
}

// isTunnel tells whether the first packets of an attack are allowed.
func isTunnel(a attack) bool { return a.name[len("IPv4 "):] == "a tunnel in an established flow" }
