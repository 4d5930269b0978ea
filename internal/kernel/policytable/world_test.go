package policytable

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/policy"
)

// world is a node that forwards between pods, and a host outside.
type world struct {
	node  netns.NsHandle
	hosts map[netip.Addr]*host
	mu    sync.Mutex
	came  map[uint16]bool // source ports of packets that arrived
}

type host struct {
	path string
	send map[string]net.PacketConn // by network, such as "ip4:17"
}

var networks = map[uint8]string{unix.IPPROTO_TCP: "6", unix.IPPROTO_UDP: "17", unix.IPPROTO_SCTP: "132"}

// newWorld makes a world of hosts with an address of each family.
func newWorld(t testing.TB, hosts [][2]netip.Addr) *world {
	t.Helper()
	w := &world{hosts: map[netip.Addr]*host{}, came: map[uint16]bool{}}
	name := func(n int) string { return fmt.Sprintf("btpt-%d-%d", os.Getpid(), n) }
	create := func(n int) string {
		if err := ns.Create(name(n)); err != nil {
			t.Fatalf("this test makes network namespaces and needs root: %v", err)
		}
		t.Cleanup(func() {
			if err := ns.Remove(name(n)); err != nil {
				t.Error(err)
			}
		})
		return ns.Path(name(n))
	}
	router := create(0)
	must(t, ns.Do(router, func() error { return ns.SetSysctls(ns.Forwarding...) }))
	var err error
	w.node, err = netns.GetFromPath(router)
	must(t, err)
	t.Cleanup(func() { _ = w.node.Close() })
	for i, own := range hosts {
		path := create(i + 1)
		must(t, ns.Netlink(router, func(h *netlink.Handle) error {
			prefixes := []netip.Prefix{netip.PrefixFrom(own[0], 24), netip.PrefixFrom(own[1], 64)}
			via := []netip.Addr{prefixes[0].Masked().Addr().Next(), prefixes[1].Masked().Addr().Next()}
			return ns.AddHost(h, fmt.Sprintf("pod%d", i), path, prefixes, via, 1500)
		}))
		h := &host{path, map[string]net.PacketConn{}}
		must(t, ns.Do(path, func() error { return h.open(t, w, own) }))
		w.hosts[own[0]], w.hosts[own[1]] = h, h
	}
	return w
}

// fataler is a testing.T or a rapid.T.
type fataler interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

func must(t fataler, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// open opens sockets that send and receive whole packets of each protocol.
func (h *host) open(t testing.TB, w *world, own [2]netip.Addr) error {
	for i, family := range []string{"ip4:", "ip6:"} {
		for _, protocol := range networks {
			conn, err := net.ListenPacket(family+protocol, own[i].String())
			if err != nil {
				return err
			}
			t.Cleanup(func() { _ = conn.Close() })
			h.send[family+protocol] = conn
			go w.receive(conn)
		}
	}
	return nil
}

// receive notes the packets that a socket receives, and their replies from port to port not.
func (w *world) receive(conn net.PacketConn) {
	buffer := make([]byte, 2048)
	for {
		n, _, err := conn.ReadFrom(buffer)
		if err != nil {
			return
		}
		if source := binary.BigEndian.Uint16(buffer); n >= 8 && source >= firstPort {
			w.mu.Lock()
			w.came[source] = true
			w.mu.Unlock()
		}
	}
}

// firstPort is the first source port; destinations are below.
const firstPort = 1024

// send sends the first packet of a connection.
func (w *world) send(t fataler, f policy.Flow, source uint16) {
	t.Helper()
	family := "ip4:"
	if f.Source.Is6() {
		family = "ip6:"
	}
	conn := w.hosts[f.Source].send[family+networks[f.Protocol]]
	if _, err := conn.WriteTo(firstPacket(f, source), &net.IPAddr{IP: f.Destination.AsSlice()}); err != nil && !errors.Is(err, unix.EPERM) { // refused in the pod
		t.Fatalf("send %v: %v", f, err)
	}
}

// firstPacket is a SYN, a datagram or an INIT, with its checksum.
func firstPacket(f policy.Flow, source uint16) []byte {
	b := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, source), f.Port)
	switch f.Protocol {
	case unix.IPPROTO_TCP:
		b = append(b, 0, 0, 0, 1, 0, 0, 0, 0, 5<<4, syn, 0xff, 0xff, 0, 0, 0, 0)
		binary.BigEndian.PutUint16(b[16:], checksum(f, b))
	case unix.IPPROTO_UDP:
		b = append(b, 0, 8, 0, 0)
		binary.BigEndian.PutUint16(b[6:], checksum(f, b))
	case unix.IPPROTO_SCTP: // RFC 9260, sections 3.1 and 3.3.2
		b = append(b, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 20, 0, 0, 0, 1, 0, 0, 0xff, 0xff, 0, 1, 0, 1, 0, 0, 0, 1)
		binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	}
	return b
}

// checksum is that of TCP and UDP, over addresses, protocol and segment (RFC 9293, section 3.1).
func checksum(f policy.Flow, segment []byte) uint16 {
	b := append(f.Source.AsSlice(), f.Destination.AsSlice()...)
	b = append(b, 0, f.Protocol, 0, byte(len(segment)))
	b = append(b, segment...)
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// arrivals sends the first packet of each flow and tells which ones arrived. Every packet is accounted for: it arrives
// or is counted as refused.
func (w *world) arrivals(t fataler, refused func(fataler) uint64, flows []policy.Flow) []bool {
	t.Helper()
	w.mu.Lock()
	clear(w.came)
	w.mu.Unlock()
	before := refused(t)
	for i, f := range flows {
		w.send(t, f, firstPort+uint16(i))
	}
	deadline := time.Now().Add(time.Minute)
	for {
		lost := refused(t) - before
		w.mu.Lock()
		n := len(w.came)
		w.mu.Unlock()
		if n+int(lost) == len(flows) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("of %d packets %d arrived and %d were refused", len(flows), n, lost)
		}
		time.Sleep(time.Millisecond) //nolint:forbidigo // packets that real namespaces have on their way
	}
	list := make([]bool, len(flows))
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range flows {
		list[i] = w.came[firstPort+uint16(i)]
	}
	return list
}

// refused is how many packets a table has refused.
func refused(t fataler, table *Table) (n uint64) {
	t.Helper()
	list, err := table.Refused()
	must(t, err)
	for _, r := range list {
		if len(r.Policies) == 0 {
			n += r.Packets
		}
	}
	return n
}
