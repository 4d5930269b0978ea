//go:build guest

package client

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/lab/network/echo"
	"github.com/berthnet/berth/internal/lab/network/ns"
)

// world is a client, gateways and an outside, each in a network namespace, around a router, which
// is the guest's own namespace:
//
//	client    10.1.0.2     fd01::2
//	gateway-N 10.1.N.2     fd01:0:N::2
//	stranger  10.1.99.2    fd01:0:99::2      a pod that is no gateway
//	outside   203.0.113.9  2001:db8:9::9     a destination, and 203.0.113.10 2001:db8:9::a
//	elsewhere 198.51.100.9 2001:db8:51::9    another network
type world struct {
	t       testing.TB
	servers []*echo.Server
}

const (
	clientNS, outsideNS, elsewhereNS, strangerNS = "kc", "ko", "ke", "ks"

	fouPort = 5555
)

var (
	client4, client6     = netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("fd01::2")
	outside4, outside6   = netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("2001:db8:9::9")
	further4, further6   = netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8:9::a")
	other4, other6       = netip.MustParseAddr("198.51.100.9"), netip.MustParseAddr("2001:db8:51::9")
	stranger4, stranger6 = netip.MustParseAddr("10.1.99.2"), netip.MustParseAddr("fd01:0:99::2")
	service4, service6   = netip.MustParseAddr("10.96.0.9"), netip.MustParseAddr("fd96::9")
	outsides             = []netip.Addr{outside4, outside6}
)

func gatewayNS(n int) string { return fmt.Sprintf("kg%d", n) }

func gateway4(n int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("10.1.%d.2", n)) }
func gateway6(n int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("fd01:0:%d::2", n)) }

// gateway is gateway n with ID n, that new connections may go by.
func gateway(n int) Gateway {
	return Gateway{ID: n, Addrs: []netip.Addr{gateway4(n), gateway6(n)}, Chosen: true}
}

func ending(n int) Gateway {
	g := gateway(n)
	g.Chosen, g.Ending = false, true
	return g
}

func prefixes(list ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, p := range list {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

// setup is a client with one Egress to the outside by gateways.
func setup(gateways ...Gateway) Setup {
	return Setup{
		Link: "eth0", MTU: 1500, Addrs: []netip.Addr{client4, client6}, Port: fouPort,
		ClusterNetworks: prefixes("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"),
		Egresses:        []Egress{{Name: "ns/nat", Destinations: prefixes("203.0.113.0/24", "2001:db8:9::/64"), Gateways: gateways}},
	}
}

// sh runs a script in the guest's own namespace.
func (w *world) sh(script string, args ...any) string {
	w.t.Helper()
	out, err := exec.Command("bash", "-ec", fmt.Sprintf(script, args...)).CombinedOutput()
	if err != nil {
		w.t.Fatalf("%s: %v: %s", fmt.Sprintf(script, args...), err, out)
	}
	return string(out)
}

// in runs one in a namespace.
func (w *world) in(space, script string, args ...any) string {
	w.t.Helper()
	out, err := exec.Command("ip", "netns", "exec", space, "bash", "-ec", fmt.Sprintf(script, args...)).CombinedOutput()
	if err != nil {
		w.t.Fatalf("in %s: %s: %v: %s", space, fmt.Sprintf(script, args...), err, out)
	}
	return string(out)
}

// newWorld makes one with gateways 1 to n.
func newWorld(t testing.TB, n int) *world {
	t.Helper()
	w := &world{t: t}
	w.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0")
	w.host(clientNS, client4, client6)
	w.host(strangerNS, stranger4, stranger6)
	w.host(outsideNS, outside4, outside6, further4, further6)
	w.host(elsewhereNS, other4, other6)
	for i := range n {
		w.gateway(i + 1)
	}
	for _, space := range []string{outsideNS, elsewhereNS, strangerNS} {
		w.serve(space)
	}
	return w
}

func (w *world) serve(space string) {
	w.t.Helper()
	s, err := echo.Serve(ns.Path(space))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = s.Close() })
}

// host makes a namespace as Berth makes a pod's.
func (w *world) host(space string, addrs ...netip.Addr) {
	w.t.Helper()
	script := fmt.Sprintf(`
ip netns add %[1]s
ip link add v%[1]s type veth peer name eth0 netns %[1]s
ip link set v%[1]s up
ip addr add 169.254.1.1/32 dev v%[1]s; ip addr add fe80::1/64 dev v%[1]s nodad
ip netns exec %[1]s bash -ec 'ip link set lo up; ip link set eth0 up
ip route add 169.254.1.1 dev eth0; ip route add default via 169.254.1.1 dev eth0; ip -6 route add default via fe80::1 dev eth0'
`, space)
	for _, a := range addrs {
		script += fmt.Sprintf("ip netns exec %s ip addr add %s dev eth0 nodad\nip route add %s dev v%[1]s\n", space, netip.PrefixFrom(a, a.BitLen()), a)
	}
	w.sh("%s", strings.ReplaceAll(script, "%", "%%"))
	w.t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", space).Run() })
}

// gateway makes gateway n, which passes on what clients send, to wherever it goes.
func (w *world) gateway(n int) {
	w.t.Helper()
	space := gatewayNS(n)
	w.host(space, gateway4(n), gateway6(n))
	w.in(space, `
sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
ip fou add port 5555 ipproto 4; ip -6 fou add port 5555 ipproto 41
ip link add eg4 type ipip remote any local %s ttl 64 encap fou encap-sport auto encap-dport 5555
ip link add eg6 type ip6tnl mode ip6ip6 remote any local %s encaplimit none hoplimit 64 encap fou encap-sport auto encap-dport 5555 encap-csum6
ip link set eg4 up mtu 1472; ip link set eg6 up mtu 1452
ip route add 10.1.0.2 dev eg4; ip -6 route add fd01::2 dev eg6
sysctl -qw net.ipv4.conf.eg4.rp_filter=0
nft -f - <<N
table inet e {
 chain raw { type filter hook prerouting priority raw; udp dport 5555 notrack; }
 chain out { type filter hook output priority raw; udp dport 5555 notrack; }
 chain fwd { type filter hook forward priority 0; ct state invalid drop; }
 chain post { type nat hook postrouting priority srcnat; oifname eth0 masquerade; }
}
N`, gateway4(n), gateway6(n))
}

// kill has a gateway gone at once.
func (w *world) kill(n int) { w.sh("ip netns del %s", gatewayNS(n)) }

func (w *world) apply(s Setup) {
	w.t.Helper()
	if err := Apply(w.t.Context(), ns.Path(clientNS), s); err != nil {
		w.t.Fatal(err)
	}
	if err := Check(w.t.Context(), ns.Path(clientNS), s); err != nil {
		w.t.Fatalf("after Apply: %v", err)
	}
}

// ask asks a server once, from the client.
func (w *world) ask(network string, to netip.Addr, timeout time.Duration) (netip.Addr, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	r, err := echo.Ask(ctx, ns.Path(clientNS), network, netip.AddrPortFrom(to, echo.Port), netip.Addr{}, "x")
	return r.You, err
}

// from wants servers to see connections of the client come from one of some addresses.
func (w *world) from(network string, to netip.Addr, want ...netip.Addr) {
	w.t.Helper()
	got, err := w.ask(network, to, 5*time.Second)
	if err != nil || !slices.Contains(want, got) {
		w.t.Errorf("%s to %s: seen from %v (%v), want one of %v", network, to, got, err, want)
	}
}

// spread counts from where connections come.
func (w *world) spread(network string, to netip.Addr, n int) map[netip.Addr]int {
	w.t.Helper()
	seen := map[netip.Addr]int{}
	for range n {
		got, err := w.ask(network, to, 5*time.Second)
		if err != nil {
			w.t.Errorf("%s to %s: %v", network, to, err)
			return seen
		}
		seen[got]++
	}
	return seen
}

// connect begins a long connection from the client.
func (w *world) connect(network string, to netip.Addr) *echo.Conn {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c, err := echo.Connect(ctx, ns.Path(clientNS), network, netip.AddrPortFrom(to, echo.Port), netip.Addr{})
	if err != nil {
		w.t.Fatalf("%s to %s: %v", network, to, err)
	}
	w.t.Cleanup(func() { _ = c.Close() })
	return c
}

// talk asks on a connection and tells where it is seen from.
func (w *world) talk(c *echo.Conn) netip.Addr {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r, err := c.Ask(ctx, "more")
	if err != nil {
		w.t.Errorf("on a connection to %s: %v", c.RemoteAddr(), err)
	}
	return r.You
}

// dump is all that the kernel has in the client's namespace, as text.
func (w *world) dump() string {
	w.t.Helper()
	return w.in(clientNS, `ip -d link | grep -v 'link/ether'; ip addr; ip route show table all; ip -6 route show table all; ip rule; ip -6 rule; ip nexthop
ip fou show; ip -6 fou show; nft list ruleset; grep -r . /proc/sys/net/ipv4/conf/*/rp_filter /proc/sys/net/ipv6/conf/*/disable_ipv6`)
}

func keysOf(m map[netip.Addr]int) []netip.Addr {
	return slices.SortedFunc(maps.Keys(m), netip.Addr.Compare)
}
