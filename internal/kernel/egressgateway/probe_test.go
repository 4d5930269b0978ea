//go:build guest

package egressgateway

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/tunnel"
)

// ICMP message types for IPv4 and IPv6 (RFC 792, RFC 4443).
var (
	echoRequest = map[bool]byte{true: 8, false: 128}
	echoReply   = map[bool]byte{true: 0, false: 129}
)

// ping sends an ICMP message and waits for the reply to an echo request.
func ping(from host, to netip.Addr, kind map[bool]byte) error {
	network := "ip6:ipv6-icmp"
	if to.Is4() {
		network = "ip4:icmp"
	}
	var c net.Conn
	err := ns.Do(from.path(), func() (err error) {
		c, err = net.Dial(network, to.String())
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	message := make([]byte, 16)
	message[0] = kind[to.Is4()]
	binary.BigEndian.PutUint16(message[4:], 4711)
	if to.Is4() {
		binary.BigEndian.PutUint16(message[2:], checksum(message))
	}
	if _, err := c.Write(message); err != nil {
		return err
	}
	if err := c.SetReadDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return err
	}
	buf := make([]byte, 1500)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return fmt.Errorf("%w to ping from %s to %s: %w", errNone, from.name, to, err)
		}
		if n >= 20 && buf[0] == 0x45 { // Linux includes the IPv4 header
			n = copy(buf, buf[20:n])
		}
		if n > 5 && buf[0] == echoReply[to.Is4()] && binary.BigEndian.Uint16(buf[4:]) == 4711 {
			return nil
		}
	}
}

// checksum is RFC 1071's.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

func openNFT(t *testing.T, k *Kernel) *nftables.Conn {
	t.Helper()
	conn, err := k.at.NFTables()
	must(t, err)
	return conn
}

// state returns the rules, sets, links and routes of the gateway's namespace, without counters.
func (w world) state(t *testing.T) string {
	t.Helper()
	var out string
	must(t, ns.Netlink(w.gateway.path(), func(h *netlink.Handle) error {
		links, err := h.LinkList()
		for _, l := range links {
			out += fmt.Sprintf("%d %s %s %d\n", l.Attrs().Index, l.Attrs().Name, l.Type(), l.Attrs().MTU)
		}
		if err != nil {
			return err
		}
		for _, f := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			routes, err := h.RouteListFiltered(f, &netlink.Route{Table: ReturnTable}, netlink.RT_FILTER_TABLE)
			if err != nil {
				return err
			}
			rules, err := h.RuleList(f)
			if err != nil {
				return err
			}
			for _, r := range routes {
				out += r.String() + "\n"
			}
			for _, r := range rules {
				out += r.String() + "\n"
			}
		}
		return nil
	}))
	k := w.open(t)
	conn := openNFT(t, k)
	chains, err := conn.ListChainsOfTableFamily(table().Family)
	must(t, err)
	for _, c := range chains {
		rules, err := conn.GetRules(table(), c)
		must(t, err)
		for _, r := range rules {
			out += fmt.Sprintf("%s %d %s\n", c.Name, r.Handle, r.UserData)
		}
	}
	for _, f := range tunnel.Families {
		for _, s := range []*nftables.Set{clientSet(f), destinationSet(f)} {
			list, err := conn.GetSetElements(s)
			must(t, err)
			out += fmt.Sprintf("%s %v\n", s.Name, len(list))
		}
	}
	return out
}

// exceed sends a datagram with a TTL of 1, and returns the sender of the ICMP error.
func exceed(from host, to netip.Addr) (netip.Addr, error) {
	network, all, level, hops, kind := "ip6:ipv6-icmp", "::", unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, byte(3)
	if to.Is4() {
		network, all, level, hops, kind = "ip4:icmp", "0.0.0.0", unix.IPPROTO_IP, unix.IP_TTL, 11
	}
	var said net.PacketConn
	err := ns.Do(from.path(), func() (err error) {
		said, err = net.ListenPacket(network, all)
		return err
	})
	if err != nil {
		return netip.Addr{}, err
	}
	defer said.Close()
	c, err := ns.Dial(context.Background(), from.path(), "udp", netip.AddrPortFrom(to, 33434), netip.Addr{})
	if err != nil {
		return netip.Addr{}, err
	}
	defer c.Close()
	raw, err := c.(*net.UDPConn).SyscallConn()
	if err != nil {
		return netip.Addr{}, err
	}
	if err := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, hops, 1) }); err != nil {
		return netip.Addr{}, err
	}
	if _, err := c.Write([]byte("trace")); err != nil {
		return netip.Addr{}, err
	}
	if err := said.SetReadDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return netip.Addr{}, err
	}
	buf := make([]byte, 1500)
	for {
		n, by, err := said.ReadFrom(buf)
		if err != nil {
			return netip.Addr{}, err
		}
		if n > 0 && buf[0] == kind {
			a, _ := netip.AddrFromSlice(by.(*net.IPAddr).IP)
			return a.Unmap(), nil
		}
	}
}
