//go:build guest

package egressgateway

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/ns/nstest"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/kernel/tunnel"
	"github.com/berthnet/berth/lab/network/echo"
)

const port = 5555

// host is a namespace behind the router, with an address of each family.
type host struct {
	name  string
	addrs []netip.Addr // IPv4, IPv6
}

func (h host) path() string { return ns.Path(h.name) }

func (h host) of(family int) netip.Addr { return h.addrs[map[int]int{4: 0, 6: 1}[family]] }

// world is a gateway, two pods and a stranger in a cluster, and two hosts outside behind a further
// router.
type world struct {
	gateway, one, two, stranger host
	outside, other              host // one is in the destinations, the other is not
}

func at(name string, n int, v4, v6 string) host {
	return host{name, []netip.Addr{netip.MustParseAddr(fmt.Sprintf(v4, n)), netip.MustParseAddr(fmt.Sprintf(v6, n))}}
}

const (
	router = "router"
	far    = "far" // the router before the hosts outside
)

var families46 = map[string]int{"IPv4": 4, "IPv6": 6}

func newHosts() world {
	return world{
		gateway: at("gateway", 1, "10.1.%d.2", "fd01:%x::2"), one: at("one", 2, "10.1.%d.2", "fd01:%x::2"),
		two: at("two", 3, "10.1.%d.2", "fd01:%x::2"), stranger: at("stranger", 4, "10.1.%d.2", "fd01:%x::2"),
		outside: at("outside", 113, "203.0.%d.2", "2001:db8:%x::2"), other: at("other", 100, "198.51.%d.2", "2001:db8:%x::2"),
	}
}

func newWorld(t *testing.T) world {
	t.Helper()
	w := newHosts()
	for _, name := range []string{router, far} {
		nstest.New(t, name)
		within(t, ns.Path(name), func() error { return ns.SetSysctls(ns.Forwarding...) })
	}
	between := []netip.Addr{netip.MustParseAddr("10.2.0.1"), netip.MustParseAddr("fd02::1")}
	must(t, ns.Netlink(ns.Path(router), func(h *netlink.Handle) error {
		return ns.AddHost(h, "to-far", ns.Path(far), prefixes([]netip.Addr{between[0].Next(), between[1].Next()}), between, 1500)
	}))
	for _, p := range []host{w.gateway, w.one, w.two, w.stranger, w.outside, w.other} {
		nstest.New(t, p.name)
		behind := router
		if p.name == w.outside.name || p.name == w.other.name {
			behind = far
		}
		must(t, ns.Netlink(ns.Path(behind), func(h *netlink.Handle) error {
			return ns.AddHost(h, "to-"+p.name, p.path(), prefixes(p.addrs), []netip.Addr{p.addrs[0].Prev(), p.addrs[1].Prev()}, 1500)
		}))
		s, err := echo.Serve(p.path())
		must(t, err)
		t.Cleanup(func() { _ = s.Close() })
	}
	onLink(t, ns.Path(router), "to-far", func(h *netlink.Handle, l netlink.Link) error {
		for _, p := range []host{w.outside, w.other} {
			for i, a := range p.addrs {
				r := &netlink.Route{Dst: ns.IPNet(prefixes(p.addrs)[i].Masked()), Gw: between[i].Next().AsSlice(), LinkIndex: l.Attrs().Index}
				if err := h.RouteAdd(r); err != nil {
					return fmt.Errorf("route to %s: %w", a, err)
				}
			}
		}
		return nil
	})
	// What berthd does for pods with the annotation of gateways, but for IPv4, which the gateway can
	// do itself. Filtering by the reverse path is as strict as a node's may be.
	within(t, w.gateway.path(), func() error {
		return ns.SetSysctls(ns.Sysctl{Name: "net/ipv6/conf/all/forwarding", Value: "1"},
			ns.Sysctl{Name: "net/ipv4/ip_forward", Value: "0"},
			ns.Sysctl{Name: "net/ipv4/conf/all/rp_filter", Value: "1"})
	})
	for _, p := range []host{w.one, w.two, w.stranger} {
		w.client(t, p)
	}
	return w
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func within(t *testing.T, path string, f func() error) {
	t.Helper()
	must(t, ns.Do(path, f))
}

// onLink changes something about a link of a namespace.
func onLink(t *testing.T, path, name string, do func(h *netlink.Handle, l netlink.Link) error) {
	t.Helper()
	must(t, ns.Netlink(path, func(h *netlink.Handle) error {
		l, err := h.LinkByName(name)
		if err != nil {
			return err
		}
		return do(h, l)
	}))
}

func prefixes(addrs []netip.Addr) []netip.Prefix {
	return []netip.Prefix{netip.PrefixFrom(addrs[0], 30), netip.PrefixFrom(addrs[1], 64)}
}

// client makes a host send packets to all hosts but the gateway by the gateway.
func (w world) client(t *testing.T, p host) {
	t.Helper()
	for i, own := range p.addrs {
		index := w.ensureTunnel(t, p, own)
		must(t, ns.Netlink(p.path(), func(h *netlink.Handle) error {
			for _, to := range []host{w.outside, w.other, w.one, w.two} {
				if to.name == p.name {
					continue
				}
				if err := h.RouteReplace(&netlink.Route{
					Dst: rtnl.IPNet(rtnl.HostPrefix(to.addrs[i])), Gw: w.gateway.addrs[i].AsSlice(), LinkIndex: index,
					Flags: int(netlink.FLAG_ONLINK), Src: own.AsSlice(), Table: 200,
				}); err != nil {
					return fmt.Errorf("route to %s: %w", to.name, err)
				}
			}
			rule := netlink.NewRule()
			rule.Family, rule.Priority, rule.Table = rtnl.FamilyOf(own), 1000, 200
			return h.RuleAdd(rule)
		}))
	}
	within(t, p.path(), func() error {
		return ns.SetSysctls(ns.Sysctl{Name: "net/ipv4/conf/all/rp_filter", Value: "0"}, ns.Sysctl{Name: "net/ipv4/conf/berth-egress4/rp_filter", Value: "0"})
	})
}

func (w world) ensureTunnel(t *testing.T, p host, own netip.Addr) (index int) {
	t.Helper()
	at, err := tunnel.Open(p.path())
	must(t, err)
	defer at.Close()
	index, err = tunnel.Ensure(at.NL, tunnel.Tunnel{Local: own, MTU: tunnel.MTU(1500, own), Port: port, SourcePortAuto: true})
	must(t, err)
	return index
}

// setup serves one and two.
func (w world) setup() Setup {
	return Setup{
		Link: "eth0", Addrs: w.gateway.addrs, Port: port,
		Destinations: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("203.0.0.0/16"), netip.MustParsePrefix("2001:db8:71::/48")},
		Clients:      []Client{{UID: "uid-one", Addrs: w.one.addrs}, {UID: "uid-two", Addrs: w.two.addrs}},
	}
}

func (w world) open(t *testing.T) *Kernel {
	t.Helper()
	k, err := Open(w.gateway.path())
	must(t, err)
	t.Cleanup(k.Close)
	return k
}

func apply(t *testing.T, k *Kernel, s Setup) {
	t.Helper()
	must(t, k.Apply(t.Context(), s))
}

// ask sends a request from a host to another's echo server, and returns the source that the server saw.
func ask(t *testing.T, from host, network string, to netip.Addr, wait time.Duration) (netip.Addr, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	r, err := echo.Ask(ctx, from.path(), network, netip.AddrPortFrom(to, echo.Port), netip.Addr{}, "hello")
	return r.You, err
}

func seenAs(t *testing.T, from host, network string, to, want netip.Addr) {
	t.Helper()
	if you, err := ask(t, from, network, to, time.Minute); err != nil || you != want {
		t.Errorf("%s from %s to %s is seen as %v (%v), want %s", network, from.name, to, you, err, want)
	}
}

// unansweredFor limits the wait for a reply that must not come. Tests also count dropped packets, so that a stalled
// machine hides nothing.
const unansweredFor = 500 * time.Millisecond

func unanswered(t *testing.T, from host, network string, to netip.Addr) {
	t.Helper()
	if you, err := ask(t, from, network, to, unansweredFor); err == nil {
		t.Errorf("%s from %s to %s is answered, as %s", network, from.name, to, you)
	}
}

func connect(t *testing.T, from host, to netip.Addr) *echo.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := echo.Connect(ctx, from.path(), "tcp", netip.AddrPortFrom(to, echo.Port), netip.Addr{})
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	if _, err := c.Ask(ctx, "begun"); err != nil {
		t.Fatal(err)
	}
	return c
}

// alive asks once more.
func alive(t *testing.T, c *echo.Conn, want bool) {
	t.Helper()
	wait := unansweredFor
	if want {
		wait = time.Minute
	}
	if _, err := c.Once("still", wait); (err == nil) != want {
		t.Errorf("the connection %s: %v, want it alive: %t", c.LocalAddr(), err, want)
	}
}

// dropped returns the number of dropped packets by reason.
func dropped(t *testing.T, k *Kernel, family int) map[Reason]uint64 {
	t.Helper()
	c, err := k.Counters()
	must(t, err)
	n := map[Reason]uint64{}
	for _, r := range Reasons {
		n[r] = c.Dropped[r][family].Packets
	}
	return n
}

// onlyMore asserts that packets were dropped for one reason since before, and for no other.
func onlyMore(t *testing.T, k *Kernel, family int, before map[Reason]uint64, why Reason) {
	t.Helper()
	for r, n := range dropped(t, k, family) {
		if more := n > before[r]; more != (r == why) {
			t.Errorf("dropped as %s: %d after %d; want more of %s only", r, n, before[r], why)
		}
	}
}

func TestMain(m *testing.M) {
	if err := tunnel.Supported(); err != nil {
		fmt.Fprintln(os.Stderr, "this kernel has no Foo over UDP, run it in the machine that does (hack/vm.sh):", err)
		os.Exit(1)
	}
	if path := os.Getenv(childEnv); path != "" {
		fmt.Fprintln(os.Stderr, child(path))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

var errNone = errors.New("no answer")
