//go:build guest

package egressclient

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/kernel/tunnel"
	"github.com/berthnet/berth/lab/network/echo"
)

// Tunnels to the Service's address reach a gateway through kube-proxy, and replies come from the gateway's own
// address.
func TestService(t *testing.T) {
	w := newWorld(t)
	w.sh(`nft -f - <<N
table ip proxy {
 chain in { type nat hook prerouting priority dstnat; ip daddr %s udp dport 5555 dnat to numgen inc mod 2 map { 0: %s, 1: %s };
 }
}
table ip6 proxy {
 chain in { type nat hook prerouting priority dstnat; ip6 daddr %s udp dport 5555 dnat to numgen inc mod 2 map { 0: %s, 1: %s };
 }
}
N`, service4, gateway4(1), gateway4(2), service6, gateway6(1), gateway6(2))
	t.Cleanup(func() { w.sh("nft delete table ip proxy; nft delete table ip6 proxy") })
	for _, auto := range []bool{false, true} {
		t.Run(fmt.Sprintf("source port auto %t", auto), func(t *testing.T) {
			w := &world{t}
			s := setup(gateway(1), gateway(2))
			for i := range s.Egresses[0].Gateways {
				s.Egresses[0].Gateways[i].ID, s.Egresses[0].Gateways[i].Chosen = 0, false
			}
			s.Egresses[0].Service, s.Egresses[0].SourcePortAuto = []netip.Addr{service4, service6}, auto
			w.apply(s)
			for _, network := range networks {
				for _, to := range outsides {
					seen := w.spread(network, to, 12)
					if want := map[bool]int{false: 1, true: 2}[auto]; len(seen) != want {
						t.Errorf("%s to %s: sources of connections = %v, want %d gateways", network, to, seen, want)
					}
				}
			}
			long := w.connect("tcp", outside4)
			from := w.talk(long)
			s.Egresses[0].Gateways = s.Egresses[0].Gateways[:0]
			w.apply(s)
			for _, to := range outsides {
				if got, err := w.ask("tcp", to, time.Second); err == nil {
					t.Errorf("connection to %s without a gateway succeeded with source %s", to, got)
				}
			}
			s.Egresses[0].Gateways = []Gateway{{Addrs: gateway(1).Addrs}, {Addrs: gateway(2).Addrs}}
			w.apply(s)
			if now := w.talk(long); now != from {
				t.Errorf("source of an open connection changed from %s to %s", from, now)
			}
		})
	}
}

// soon limits the wait for a reply that must not come, patience the wait for one that must.
const (
	soon     = 300 * time.Millisecond
	patience = 5 * time.Second
)

// askFrom asks the client's server from another namespace.
func (w *world) askFrom(space, network string, to netip.Addr, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	_, err := echo.Ask(ctx, ns.Path(space), network, netip.AddrPortFrom(to, echo.Port), netip.Addr{}, "x")
	return err
}

// With OriginatingOnly, replies of connections from outside do not use the Egress, even without a gateway and with
// strict reverse path filtering. Connections that the pod opens do.
func TestOriginatingOnly(t *testing.T) {
	for _, strict := range []string{"0", "1"} {
		w := newWorld(t)
		w.in(clientNS, "sysctl -qw net.ipv4.conf.all.rp_filter=%s", strict)
		server, err := echo.Serve(ns.Path(clientNS))
		w.must(err)
		before := w.dump()
		s := setup(gateway(1), gateway(2))
		w.apply(s)
		for _, network := range networks {
			for _, to := range []netip.Addr{client4, client6} {
				if err := w.askFrom(outsideNS, network, to, soon); err == nil {
					t.Errorf("%s to %s: got a reply although it goes through a gateway that does not know the connection", network, to)
				}
				w.must(w.askFrom(elsewhereNS, network, to, patience))
			}
		}
		s.Egresses[0].OriginatingOnly = true
		for _, list := range [][]Gateway{s.Egresses[0].Gateways, {ending(1)}, nil} {
			s.Egresses[0].Gateways = list
			w.apply(s)
			for _, network := range networks {
				for _, to := range []netip.Addr{client4, client6} {
					if err := w.askFrom(outsideNS, network, to, patience); err != nil {
						t.Errorf("rp_filter %s, gateways %v: %s from outside to %s: %v", strict, list, network, to, err)
					}
				}
				for _, to := range outsides {
					got, err := w.ask(network, to, 2*time.Second)
					if len(list) == 2 && err != nil || len(list) < 2 && err == nil || got == client4 || got == client6 {
						t.Errorf("rp_filter %s, gateways %v: %s to %s: source %s, error %v", strict, list, network, to, got, err)
					}
				}
			}
			if len(list) == 2 {
				w.in(outsideNS, "ping -c1 -W2 %s; ping -c1 -W2 %s", client4, client6)
			}
		}
		_ = server.Close()
		s.Egresses[0].OriginatingOnly = false
		w.apply(s)
		if now := w.in(clientNS, "cat /proc/sys/net/ipv4/conf/eth0/rp_filter"); now != "0\n" {
			t.Errorf("rp_filter of eth0 = %s after OriginatingOnly was disabled, want 0", now)
		}
		s.Egresses[0].OriginatingOnly = true
		w.apply(s)
		w.apply(Setup{})
		if after := w.dump(); after != before {
			t.Errorf("state before:\n%s\nafter the removal:\n%s", before, after)
		}
	}
}

// inject sends a datagram through a tunnel from a namespace to a port of the client, with a source outside of the cluster.
func (w *world) inject(space string, own, to, from netip.Addr, port uint16, fou bool) {
	w.t.Helper()
	at, err := tunnel.Open(ns.Path(space))
	w.must(err)
	defer at.Close()
	family := rtnl.FamilyOf(own)
	defer func() { w.must(errors.Join(at.RemoveDevices(family), tunnel.RemovePort(at.NL, family, fouPort))) }()
	_, err = tunnel.Ensure(at.NL, tunnel.Tunnel{Local: own, MTU: 1400, Port: fouPort})
	w.must(err)
	name := tunnel.LinkOf(family)
	if !fou {
		kind := map[bool]string{true: "ipip", false: "ip6tnl"}[own.Is4()]
		w.in(space, "ip link change %s type %s encap none", name, kind)
	}
	w.in(space, "ip addr replace %s dev lo nodad; ip route add %s via %s dev %s onlink table 77; ip rule add from %s lookup 77 2>/dev/null || ip -6 rule add from %[5]s lookup 77",
		netip.PrefixFrom(from, from.BitLen()), to, to, name, from)
	c, err := ns.Dial(context.Background(), ns.Path(space), "udp", netip.AddrPortFrom(to, port), from)
	w.must(err)
	defer func() { _ = c.Close() }()
	_, _ = c.Write([]byte("injected"))
	w.in(space, "ip rule del from %s lookup 77 2>/dev/null || ip -6 rule del from %[1]s lookup 77; ip addr del %s dev lo", from, netip.PrefixFrom(from, from.BitLen()))
}

// Only gateways can send packets through tunnels into the pod, and only replies.
func TestInjection(t *testing.T) {
	w := newWorld(t)
	w.apply(setup(gateway(1)))
	const port = 9999
	for _, c := range []struct {
		name    string
		own, to netip.Addr
		from    netip.Addr
		gateway netip.Addr
		hook    string
	}{
		{"IPv4", stranger4, client4, other4, gateway4(1), "ip"},
		{"IPv6", stranger6, client6, other6, gateway6(1), "ip6"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &world{t}
			in, err := ns.ListenPacket(ns.Path(clientNS), netip.AddrPortFrom(c.to, port))
			w.must(err)
			defer func() { _ = in.Close() }()
			arrives := func() bool {
				_ = in.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
				_, _, err := in.ReadFrom(make([]byte, 99))
				if err != nil && !os.IsTimeout(err) {
					t.Fatal(err)
				}
				return err == nil
			}
			w.inject(strangerNS, c.own, c.to, c.from, port, true)
			if arrives() {
				t.Error("a FoU packet that is not from a gateway reached the client")
			}
			w.inject(strangerNS, c.own, c.to, c.from, port, false)
			if arrives() {
				t.Error("a tunnel packet without UDP that is not from a gateway reached the client")
			}
			// The gateway already has its tunnel.
			w.in(gatewayNS(1), "ip addr replace %s dev lo nodad", netip.PrefixFrom(c.from, c.from.BitLen()))
			g, err := ns.Dial(t.Context(), ns.Path(gatewayNS(1)), "udp", netip.AddrPortFrom(c.to, port), c.from)
			w.must(err)
			defer func() { _ = g.Close() }()
			w.must(ns.Netlink(ns.Path(gatewayNS(1)), func(h *netlink.Handle) error {
				r := netlink.NewRule()
				r.Family, r.Priority, r.Table, r.Src = rtnl.FamilyOf(c.from), 90, 117, rtnl.IPNet(rtnl.HostPrefix(c.from))
				return h.RuleAdd(r)
			}))
			_, _ = g.Write([]byte("not asked for"))
			if arrives() {
				t.Error("an unsolicited packet from a gateway reached the client")
			}
			// Without nftables these packets arrive; otherwise the checks above would prove nothing.
			w.in(clientNS, "nft delete table inet berth-egress")
			for _, fou := range []bool{true, false} {
				w.inject(strangerNS, c.own, c.to, c.from, port, fou)
				if !arrives() {
					t.Errorf("without nftables (FoU %t) the packet did not arrive: this test cannot detect an injection", fou)
				}
			}
			_, _ = g.Write([]byte("not asked for"))
			if !arrives() {
				t.Error("without nftables the gateway's packet did not arrive: this test cannot detect an injection")
			}
			w.apply(setup(gateway(1)))
			w.in(gatewayNS(1), "ip addr del %s dev lo", netip.PrefixFrom(c.from, c.from.BitLen()))
		})
	}
}

// With a default route through an Egress, packets to cluster networks, and to gateways within destinations, do not
// use the Egress.
func TestClusterNetworks(t *testing.T) {
	w := newWorld(t)
	s := setup(gateway(1))
	s.Egresses[0].Destinations = nets("0.0.0.0/0", "::/0")
	s.ClusterNetworks = nets("10.1.99.0/24", "fd01:0:99::/64")
	for range 2 {
		w.apply(s)
		for _, network := range networks {
			w.from(network, outside4, gateway4(1))
			w.from(network, other6, gateway6(1))
			w.from(network, stranger4, client4)
			w.from(network, stranger6, client6)
		}
		s.Egresses[0].Destinations = nets("203.0.113.0/24", "10.1.0.0/17", "2001:db8::/32", "fd01::/48")
		s.ClusterNetworks = nil
		s.Egresses[0].Destinations = append(s.Egresses[0].Destinations[:1:1], nets("10.1.1.0/24", "2001:db8::/32", "fd01:0:1::/64")...)
	}
}

// Packets from the address of a further interface, or from sockets bound to it, leave by that interface.
func TestPodWithSeveralInterfaces(t *testing.T) {
	w := newWorld(t)
	w.sh(`ip link del vk2 2>/dev/null || true
ip link add vk2 type veth peer name eth1 netns kc; ip link set vk2 up; ip addr add 10.2.0.1/24 dev vk2; ip addr add fd02::1/64 dev vk2 nodad`)
	w.in(clientNS, `ip link set eth1 up; ip addr add 10.2.0.2/24 dev eth1; ip addr add fd02::2/64 dev eth1 nodad
ip route add default via 10.2.0.1 dev eth1 table 2053; ip rule add pref 2048 from 10.2.0.2 lookup 2053; ip route add default via 10.2.0.1 dev eth1 metric 2053
ip -6 route add default via fd02::1 dev eth1 table 2053; ip -6 rule add pref 2048 from fd02::2 lookup 2053; ip -6 route add default via fd02::1 dev eth1 metric 2053`)
	nic4, nic6 := netip.MustParseAddr("10.2.0.2"), netip.MustParseAddr("fd02::2")
	for _, destinations := range [][]string{{"203.0.113.0/24", "2001:db8:9::/64"}, {"0.0.0.0/0", "::/0"}} {
		s := setup(gateway(1))
		s.Others = []netip.Addr{nic4, nic6}
		s.Egresses[0].Destinations = nets(destinations...)
		w.apply(s)
		for from, to := range map[netip.Addr]netip.Addr{nic4: outside4, nic6: outside6} {
			for _, network := range networks {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				r, err := echo.Ask(ctx, ns.Path(clientNS), network, netip.AddrPortFrom(to, echo.Port), from, "x")
				cancel()
				if err != nil || r.You != from {
					t.Errorf("destinations %v: source of %s from %s = %s, error %v", destinations, network, from, r.You, err)
				}
			}
			w.in(clientNS, "ping -c1 -W3 -I eth1 %s", to)
		}
		w.from("tcp", outside4, gateway4(1))
		w.from("tcp", outside6, gateway6(1))
	}
}

// bulk sends n bytes in each direction over TCP.
func (w *world) bulk(to netip.Addr, n int) {
	w.t.Helper()
	l, err := ns.Listen(ns.Path(outsideNS), netip.AddrPortFrom(to, 4444))
	w.must(err)
	defer func() { _ = l.Close() }()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		data := make([]byte, n)
		if _, err := io.ReadFull(c, data); err == nil {
			_, _ = c.Write(data)
		}
	}()
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer cancel()
	c, err := ns.Dial(ctx, ns.Path(clientNS), "tcp", netip.AddrPortFrom(to, 4444), netip.Addr{})
	w.must(err)
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	sent := bytes.Repeat([]byte("0123456789abcdef"), n/16)
	if _, err := c.Write(sent); err != nil {
		w.t.Errorf("send %d bytes to %s: %v", n, to, err)
		return
	}
	_ = c.(*net.TCPConn).CloseWrite()
	got := make([]byte, n)
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, sent) {
		w.t.Errorf("receive %d bytes from %s: %v", n, to, err)
	}
}

// Large transfers work through the tunnel, also over a path beyond the gateway with a smaller MTU.
func TestMTU(t *testing.T) {
	w := newWorld(t)
	w.apply(setup(gateway(1), gateway(2)))
	for _, to := range outsides {
		w.bulk(to, 256<<10)
	}
	w.sh("ip route add %s dev vko mtu lock 1300; ip -6 route add %s dev vko mtu lock 1300", outside4, outside6)
	t.Cleanup(func() { w.sh("ip route del %s; ip -6 route del %s", outside4, outside6) })
	for range 4 {
		for _, to := range outsides {
			w.bulk(to, 64<<10)
		}
	}
	w.client()
	w.apply(setup(gateway(1)))
	for _, to := range outsides {
		c := w.connect("udp", to)
		var err error
		for range 4 { // until the kernel knows the path MTU; for IPv6 the program gets an error
			if _, err = c.Once(strings.Repeat("x", 1380), time.Second); err == nil {
				break
			}
		}
		if err != nil {
			t.Errorf("1,380 bytes over UDP to %s: %v", to, err)
		}
	}
}

// A connection continues while another Egress with many destinations is added and removed.
func TestManyDestinations(t *testing.T) {
	w := newWorld(t)
	w.apply(setup(gateway(1)))
	long := w.connect("tcp", outside6)
	from := w.talk(long)
	s := setup(gateway(1))
	many := Egress{Name: "ns/many", Gateways: []Gateway{gateway(2)}}
	for i := range 50 {
		many.Destinations = append(many.Destinations, nets(fmt.Sprintf("192.0.%d.0/24", i), fmt.Sprintf("2001:db8:a%02d::/48", i))...)
	}
	many.Destinations = append(many.Destinations, nets("198.51.100.0/24", "2001:db8:51::/48")...)
	s.Egresses = append(s.Egresses, many)
	w.apply(s)
	w.from("tcp", other4, gateway4(2))
	w.from("tcp", other6, gateway6(2))
	w.from("tcp", outside4, gateway4(1))
	if now := w.talk(long); now != from {
		t.Errorf("source of an open connection changed from %s to %s", from, now)
	}
	list, err := w.steps(setup(gateway(1)), nil)
	w.must(err)
	t.Logf("%d steps", len(list))
	w.from("tcp", other4, client4)
	if now := w.talk(long); now != from {
		t.Errorf("source of an open connection changed from %s to %s", from, now)
	}
}

// While gateways, ports, destinations and Egresses change, no packet to a destination bypasses the gateways.
func TestNoPacketBypassesGateways(t *testing.T) {
	w := newWorld(t)
	all := setup(gateway(2))
	all.Egresses[0].Destinations = nets("0.0.0.0/0", "::/0", "203.0.113.0/24", "2001:db8:9::/64")
	split := setup(gateway(3), ending(2))
	split.Egresses[0].Destinations = nets("203.0.113.0/25", "203.0.113.128/25", "2001:db8:9::/65", "2001:db8:9:0:8000::/65")
	moved := setup(gateway(1))
	moved.Egresses[0].Name = "ns/other"
	port := setup(gateway(1))
	port.Egresses[0].SourcePortAuto = true
	states := []Setup{setup(gateway(1), gateway(2)), setup(), all, split, setup(ending(2)), moved, port}
	w.apply(states[0])
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, to := range outsides {
		running.Go(func() {
			asked, answered := 0, 0
			for ; ctx.Err() == nil; asked++ {
				c, err := ns.Dial(ctx, ns.Path(clientNS), "udp", netip.AddrPortFrom(to, echo.Port), netip.Addr{})
				if err != nil {
					continue
				}
				_, _ = c.Write([]byte("x"))
				_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
				answer := make([]byte, 200)
				if n, err := c.Read(answer); err == nil {
					answered++
					r, err := echo.Parse(string(answer[:n]))
					if err != nil || r.You == client4 || r.You == client6 {
						t.Errorf("to %s: a packet bypassed the gateways: reply %s, error %v", to, r, err)
					}
				}
				_ = c.Close()
			}
			t.Logf("to %s: %d requests, %d replies", to, asked, answered)
		})
	}
	rounds := 3
	if testing.Short() {
		rounds = 1
	}
	for range rounds {
		for _, s := range states {
			w.apply(s)
		}
	}
	cancel()
	running.Wait()
}
