//go:build guest

package egressclient

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/kernel/tunnel"
	"github.com/berthnet/berth/lab/network/echo"
)

// world is a client, gateways and hosts outside of the cluster, each in a network namespace, around a router, which
// is the guest's own namespace:
//
//	client    10.1.0.2     fd01::2
//	gateway-N 10.1.N.2     fd01:0:N::2
//	stranger  10.1.99.2    fd01:0:99::2      a pod that is not a gateway
//	outside   203.0.113.9  2001:db8:9::9     a destination
//	elsewhere 198.51.100.9 2001:db8:51::9    a network that is not a destination
type world struct{ t testing.TB }

const (
	clientNS, outsideNS, elsewhereNS, strangerNS = "kc", "ko", "ke", "ks"

	fouPort = 5555
)

var (
	client4, client6     = netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("fd01::2")
	outside4, outside6   = netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("2001:db8:9::9")
	other4, other6       = netip.MustParseAddr("198.51.100.9"), netip.MustParseAddr("2001:db8:51::9")
	stranger4, stranger6 = netip.MustParseAddr("10.1.99.2"), netip.MustParseAddr("fd01:0:99::2")
	service4, service6   = netip.MustParseAddr("10.96.0.9"), netip.MustParseAddr("fd96::9")
	outsides             = []netip.Addr{outside4, outside6}
)

func gatewayNS(n int) string { return fmt.Sprintf("kg%d", n) }

func gateway4(n int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("10.1.%d.2", n)) }
func gateway6(n int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("fd01:0:%d::2", n)) }

// gateway is gateway n, with ID n, for new connections.
func gateway(n int) Gateway {
	return Gateway{ID: n, Addrs: []netip.Addr{gateway4(n), gateway6(n)}, Chosen: true}
}

func ending(n int) Gateway {
	g := gateway(n)
	g.Chosen, g.Ending = false, true
	return g
}

// setup is a client with one Egress, which reaches the outside through the gateways.
func setup(gateways ...Gateway) Setup {
	return Setup{
		Link: "eth0", MTU: 1500, Addrs: []netip.Addr{client4, client6}, Port: fouPort,
		ClusterNetworks: nets("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"),
		Egresses:        []Egress{{Name: "ns/nat", Destinations: nets("203.0.113.0/24", "2001:db8:9::/64"), Gateways: gateways}},
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

// in runs a script in a namespace.
func (w *world) in(space, script string, args ...any) string {
	w.t.Helper()
	out, err := exec.Command("ip", "netns", "exec", space, "bash", "-ec", fmt.Sprintf(script, args...)).CombinedOutput()
	if err != nil {
		w.t.Fatalf("in %s: %s: %v: %s", space, fmt.Sprintf(script, args...), err, out)
	}
	return string(out)
}

// newWorld returns the world, which all tests share, with three gateways and no Egress in the client.
func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t}
	made.Do(func() { w.make() })
	for n := range gateways {
		if _, err := os.Stat(ns.Path(gatewayNS(n + 1))); err != nil {
			w.gateway(n + 1)
		}
	}
	w.client()
	return w
}

const gateways = 3

var made sync.Once

func TestMain(m *testing.M) {
	code := m.Run()
	for _, space := range spaces() {
		_ = ns.Remove(space)
	}
	os.Exit(code)
}

func spaces() []string {
	list := []string{clientNS, strangerNS, outsideNS, elsewhereNS}
	for n := range gateways {
		list = append(list, gatewayNS(n+1))
	}
	return list
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) make() {
	w.t.Helper()
	for _, space := range spaces() {
		_ = ns.Remove(space) // left by an earlier run in the same guest
	}
	w.must(ns.SetSysctls(ns.Sysctl{Name: "net/ipv4/ip_forward", Value: "1"}, ns.Sysctl{Name: "net/ipv6/conf/all/forwarding", Value: "1"},
		ns.Sysctl{Name: "net/ipv4/conf/all/rp_filter", Value: "0"}, ns.Sysctl{Name: "net/ipv4/conf/default/rp_filter", Value: "0"}))
	w.host(strangerNS, "10.1.99.2/24", "fd01:0:99::2/64")
	w.host(outsideNS, "203.0.113.9/24", "2001:db8:9::9/64")
	w.host(elsewhereNS, "198.51.100.9/24", "2001:db8:51::9/64")
	for _, space := range []string{outsideNS, elsewhereNS, strangerNS} {
		_, err := echo.Serve(ns.Path(space))
		w.must(err)
	}
}

// client replaces the client's namespace.
func (w *world) client() {
	w.t.Helper()
	if _, err := os.Stat(ns.Path(clientNS)); err == nil {
		w.must(ns.Remove(clientNS))
	}
	w.host(clientNS, "10.1.0.2/24", "fd01::2/64")
}

// host makes a namespace behind the router with addresses in networks. The router has the first address in each of
// the first two networks.
func (w *world) host(space string, networks ...string) {
	w.t.Helper()
	own := nets(networks...)
	w.must(ns.Create(space))
	w.must(ns.Netlink("/proc/thread-self/ns/net", func(h *netlink.Handle) error {
		_ = ns.DeleteLink(h, "v"+space)
		return ns.AddHost(h, "v"+space, ns.Path(space), own[:2], []netip.Addr{own[0].Masked().Addr().Next(), own[1].Masked().Addr().Next()}, 1500)
	}))
	w.must(ns.Netlink(ns.Path(space), func(h *netlink.Handle) error {
		l, err := h.LinkByName("eth0")
		for _, p := range own[2:] {
			err = errors.Join(err, ns.AddAddr(h, l, p))
		}
		return err
	}))
}

// gateway makes gateway n, which forwards all packets from clients.
func (w *world) gateway(n int) {
	w.t.Helper()
	space := gatewayNS(n)
	w.host(space, fmt.Sprintf("10.1.%d.2/24", n), fmt.Sprintf("fd01:0:%d::2/64", n))
	at, err := tunnel.Open(ns.Path(space))
	w.must(err)
	defer at.Close()
	h := at.NL
	for _, own := range []netip.Addr{gateway4(n), gateway6(n)} {
		index, err := tunnel.Ensure(h, tunnel.Tunnel{Local: own, MTU: tunnel.MTU(1500, own), Port: fouPort, SourcePortAuto: true})
		w.must(err)
		to := tunnel.AddrOf([]netip.Addr{client4, client6}, rtnl.FamilyOf(own))
		w.must(h.RouteAdd(&netlink.Route{LinkIndex: index, Dst: rtnl.IPNet(rtnl.HostPrefix(to)), Table: 117}))
		// The tunnels' own packets, which have the same destination, use the main table.
		rule := netlink.NewRule()
		rule.Family, rule.Priority, rule.Table, rule.IifName, rule.Invert = rtnl.FamilyOf(own), 100, 117, "lo", true
		w.must(h.RuleAdd(rule))
	}
	w.must(ns.Do(ns.Path(space), func() error {
		return ns.SetSysctls(ns.Sysctl{Name: "net/ipv4/ip_forward", Value: "1"}, ns.Sysctl{Name: "net/ipv6/conf/all/forwarding", Value: "1"},
			ns.Sysctl{Name: "net/ipv4/conf/all/rp_filter", Value: "0"}, ns.Sysctl{Name: "net/ipv4/conf/berth-egress4/rp_filter", Value: "0"})
	}))
	w.in(space, `nft -f - <<N
table inet e {
 chain raw { type filter hook prerouting priority raw; udp dport 5555 notrack; }
 chain sent { type filter hook output priority raw; udp dport 5555 notrack; }
 chain passed { type filter hook forward priority 0; ct state invalid drop; }
 chain leaving { type nat hook postrouting priority srcnat; oifname eth0 masquerade; }
}
N`)
}

// kill removes a gateway abruptly.
func (w *world) kill(n int) { w.must(ns.Remove(gatewayNS(n))) }

func (w *world) apply(s Setup) {
	w.t.Helper()
	if err := Apply(w.t.Context(), ns.Path(clientNS), s); err != nil {
		w.t.Fatal(err)
	}
	if err := Check(w.t.Context(), ns.Path(clientNS), s); err != nil {
		w.t.Fatalf("Check() after Apply(): %v", err)
	}
}

// ask sends one request from the client.
func (w *world) ask(network string, to netip.Addr, timeout time.Duration) (netip.Addr, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	r, err := echo.Ask(ctx, ns.Path(clientNS), network, netip.AddrPortFrom(to, echo.Port), netip.Addr{}, "x")
	return r.You, err
}

// from asserts that connections of the client have one of some source addresses at the server.
func (w *world) from(network string, to netip.Addr, want ...netip.Addr) {
	w.t.Helper()
	got, err := w.ask(network, to, 5*time.Second)
	if err != nil || !slices.Contains(want, got) {
		w.t.Errorf("%s to %s: source = %v (error: %v), want one of %v", network, to, got, err, want)
	}
}

// spread counts connections by their source address at the server.
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

// connect opens a connection from the client.
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

// talk sends a request on a connection and returns the connection's source address at the server.
func (w *world) talk(c *echo.Conn) netip.Addr {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r, err := c.Ask(ctx, "more")
	if err != nil {
		w.t.Errorf("request on a connection to %s: %v", c.RemoteAddr(), err)
	}
	return r.You
}

// dump is the complete state of the client's namespace as text.
func (w *world) dump() string {
	w.t.Helper()
	return w.in(clientNS, `set -o pipefail; ip -d link | grep -v 'link/ether'; ip addr; ip route show table all; ip -6 route show table all | sort -u; ip rule; ip -6 rule; ip nexthop
ip fou show; ip -6 fou show; nft list ruleset; grep -r . /proc/sys/net/ipv4/conf/*/rp_filter /proc/sys/net/ipv6/conf/*/disable_ipv6`)
}

var numbers = regexp.MustCompile(`@if\d+|fe80::[0-9a-f:]+|link-netnsid \d+|permaddr [0-9a-f:]+|link/ether [0-9a-f:]+`)

// withoutNumbers removes numbers that differ between namespaces.
func withoutNumbers(dump string) string { return numbers.ReplaceAllString(dump, "-") }
