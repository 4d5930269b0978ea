//go:build guest

package egressgateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/lab/network/echo"
)

// TestServesClients: clients reach the outside with the gateway's address by all protocols.
func TestServesClients(t *testing.T) {
	w := newWorld(t)
	k := w.open(t)
	apply(t, k, w.setup())
	for name, f := range families46 {
		t.Run(name, func(t *testing.T) {
			for _, from := range []host{w.one, w.two} {
				for _, network := range []string{"tcp", "udp"} {
					seenAs(t, from, network, w.outside.of(f), w.gateway.of(f))
				}
				must(t, ping(from, w.outside.of(f), echoRequest))
			}
			if n := dropped(t, k, f); n[NotClient]+n[Destination]+n[Invalid]+n[NotForwarded] != 0 {
				t.Errorf("dropped: %v", n)
			}
			c, err := k.Counters()
			must(t, err)
			if out, in := c.Translated[Out][f], c.Translated[In][f]; out.Packets < 10 || in.Packets < 10 || out.Bytes < 20*out.Packets || in.Bytes < 20*in.Packets {
				t.Errorf("translated: %+v", c.Translated)
			}
		})
	}
	count, limit, err := k.Connections()
	if err != nil || count < 8 || limit < count {
		t.Errorf("%d connections of %d (%v)", count, limit, err)
	}
}

// TestServesNobodyElse: packets that are neither from a client to a destination nor replies are dropped and counted.
func TestServesNobodyElse(t *testing.T) {
	w := newWorld(t)
	k := w.open(t)
	apply(t, k, w.setup())
	// What the other host outside sends to a client comes to the gateway first.
	must(t, ns.Netlink(ns.Path(router), func(h *netlink.Handle) error {
		for i, to := range w.two.addrs {
			link, err := h.LinkByName("to-gateway")
			if err != nil {
				return err
			}
			if err := h.RouteAdd(&netlink.Route{Dst: rtnl.IPNet(rtnl.HostPrefix(to)), Gw: w.gateway.addrs[i].AsSlice(), LinkIndex: link.Attrs().Index, Table: 99}); err != nil {
				return err
			}
			rule := netlink.NewRule()
			rule.Family, rule.Priority, rule.Table, rule.IifName = rtnl.FamilyOf(to), 99, 99, "to-far"
			if err := h.RuleAdd(rule); err != nil {
				return err
			}
		}
		return nil
	}))
	for name, f := range families46 {
		t.Run(name, func(t *testing.T) {
			for _, tt := range []struct {
				name string
				why  Reason
				do   func(t *testing.T)
			}{
				{"not a client", NotClient, func(t *testing.T) { unanswered(t, w.stranger, "udp", w.outside.of(f)) }},
				{"forges another client's address inside", NotClient, func(t *testing.T) { w.forges(t, f) }},
				{"tunnel without UDP", NotClient, func(t *testing.T) { w.withoutUDP(t, f) }},
				{"no destination", Destination, func(t *testing.T) { unanswered(t, w.one, "tcp", w.other.of(f)) }},
				{"a client", NotForwarded, func(t *testing.T) { unanswered(t, w.one, "udp", w.two.of(f)) }},
				{"the gateway itself", NotForwarded, func(t *testing.T) { w.toGateway(t, f) }},
				{"from outside to a client", NotForwarded, func(t *testing.T) { unanswered(t, w.outside, "udp", w.two.of(f)) }},
				{"no connection", Invalid, func(t *testing.T) {
					if ping(w.one, w.outside.of(f), echoReply) == nil {
						t.Error("answered")
					}
				}},
			} {
				t.Run(tt.name, func(t *testing.T) {
					before := dropped(t, k, f)
					tt.do(t)
					onlyMore(t, k, f, before, tt.why)
				})
			}
			seenAs(t, w.one, "tcp", w.outside.of(f), w.gateway.of(f))
		})
	}
}

// forges sends a client's packet whose inner source is another client.
func (w world) forges(t *testing.T, f int) {
	t.Helper()
	onLink(t, w.one.path(), "lo", func(h *netlink.Handle, lo netlink.Link) error {
		return ns.AddAddr(h, lo, rtnl.HostPrefix(w.two.of(f)))
	})
	t.Cleanup(func() {
		_ = ns.Netlink(w.one.path(), func(h *netlink.Handle) error {
			lo, _ := h.LinkByName("lo")
			return h.AddrDel(lo, &netlink.Addr{IPNet: rtnl.IPNet(rtnl.HostPrefix(w.two.of(f)))})
		})
	})
	c, err := echo.Connect(t.Context(), w.one.path(), "udp", netip.AddrPortFrom(w.outside.of(f), echo.Port), w.two.of(f))
	must(t, err)
	defer c.Close()
	if _, err := c.Once("forged", time.Second); err == nil {
		t.Error("answered")
	}
}

// withoutUDP sends a client's packet by IP in IP without UDP, which the gateway's device would accept.
func (w world) withoutUDP(t *testing.T, f int) {
	t.Helper()
	const link = "plain"
	must(t, ns.Netlink(w.one.path(), func(h *netlink.Handle) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = link
		own, peer := w.one.of(f).AsSlice(), w.gateway.of(f).AsSlice()
		var made netlink.Link = &netlink.Iptun{LinkAttrs: attrs, Local: own, Remote: peer, Ttl: 64, PMtuDisc: 1}
		if f == 6 {
			made = &netlink.Ip6tnl{LinkAttrs: attrs, Local: own, Remote: peer, Ttl: 64, Proto: 41, Flags: 1}
		}
		if err := h.LinkAdd(made); err != nil {
			return err
		}
		if err := h.LinkSetUp(made); err != nil {
			return err
		}
		return h.RouteAdd(&netlink.Route{Dst: rtnl.IPNet(rtnl.HostPrefix(w.outside.of(f))), LinkIndex: made.Attrs().Index, Src: own, Table: 201})
	}))
	rule := netlink.NewRule()
	rule.Family, rule.Priority, rule.Table = rtnl.FamilyOf(w.one.of(f)), 900, 201
	must(t, ns.Netlink(w.one.path(), func(h *netlink.Handle) error { return h.RuleAdd(rule) }))
	defer func() {
		must(t, ns.Netlink(w.one.path(), func(h *netlink.Handle) error {
			return errors.Join(h.RuleDel(rule), ns.DeleteLink(h, link))
		}))
	}()
	unanswered(t, w.one, "udp", w.outside.of(f))
}

// toGateway sends a packet to the gateway itself through the tunnel.
func (w world) toGateway(t *testing.T, f int) {
	t.Helper()
	// The gateway has a second address, to which no outer packet goes.
	second := w.gateway.of(f)
	for range 200 {
		second = second.Next()
	}
	onLink(t, w.gateway.path(), "lo", func(h *netlink.Handle, lo netlink.Link) error {
		return ns.AddAddr(h, lo, rtnl.HostPrefix(second))
	})
	onLink(t, w.one.path(), fmt.Sprintf("berth-egress%d", f), func(h *netlink.Handle, l netlink.Link) error {
		return h.RouteReplace(&netlink.Route{
			Dst: rtnl.IPNet(rtnl.HostPrefix(second)), Gw: w.gateway.of(f).AsSlice(), LinkIndex: l.Attrs().Index,
			Flags: int(netlink.FLAG_ONLINK), Src: w.one.of(f).AsSlice(), Table: 200,
		})
	})
	// With a filter by the reverse path, which Berth does not need, the kernel drops it uncounted: to the
	// tunnel's own end routes lead by the link.
	within(t, w.gateway.path(), func() error {
		return ns.SetSysctls(ns.Sysctl{Name: "net/ipv4/conf/all/rp_filter", Value: "0"}, ns.Sysctl{Name: "net/ipv4/conf/berth-egress4/rp_filter", Value: "0"})
	})
	unanswered(t, w.one, "udp", second)
}

// TestPathMTU: ICMP errors of a path with a smaller MTU than the tunnel's reach the client, and the sender of a reply
// that is too large for the tunnel gets one.
func TestPathMTU(t *testing.T) {
	w := newWorld(t)
	k := w.open(t)
	apply(t, k, w.setup())
	narrow := func(mtu int) {
		t.Helper()
		for _, end := range []struct{ in, link string }{{router, "to-far"}, {far, "eth0"}} {
			onLink(t, ns.Path(end.in), end.link, func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetMTU(l, mtu) })
		}
	}
	narrow(1320)
	for name, f := range families46 {
		t.Run(name+" narrow outside", func(t *testing.T) {
			long := strings.Repeat("x", 30_000)
			if r, err := connect(t, w.one, w.outside.of(f)).Once(long, time.Minute); err != nil || r.Text != long {
				t.Errorf("30 kB by TCP: %v", err)
			}
		})
	}
	narrow(1500)
	for name, f := range families46 {
		t.Run(name+" narrow tunnel", func(t *testing.T) {
			c, err := echo.Connect(t.Context(), w.two.path(), "udp", netip.AddrPortFrom(w.outside.of(f), echo.Port), netip.Addr{})
			must(t, err)
			defer c.Close()
			// The question fits, the answer, which is longer, does not at first.
			text := strings.Repeat("x", map[int]int{4: 1472 - 28, 6: 1452 - 48}[f])
			if _, err := c.Ask(t.Context(), text); err != nil {
				t.Errorf("a long answer: %v", err)
			}
		})
	}
}

// TestClientsComeAndGo removes a client and gives its address to another.
func TestClientsComeAndGo(t *testing.T) {
	w := newWorld(t)
	k := w.open(t)
	s := w.setup()
	apply(t, k, s)
	for name, f := range families46 {
		t.Run(name, func(t *testing.T) {
			first, second := connect(t, w.one, w.outside.of(f)), connect(t, w.two, w.outside.of(f))
			s.Clients[0].UID += "-again" // another pod has the address
			apply(t, k, s)
			alive(t, first, false)
			alive(t, second, true)
			seenAs(t, w.one, "tcp", w.outside.of(f), w.gateway.of(f))

			third := connect(t, w.one, w.outside.of(f))
			gone := s
			gone.Clients = s.Clients[1:]
			apply(t, k, gone)
			before := dropped(t, k, f)
			alive(t, third, false)
			unanswered(t, w.one, "udp", w.outside.of(f))
			onlyMore(t, k, f, before, NotClient)
			alive(t, second, true)
			// Who comes again begins anew.
			apply(t, k, s)
			alive(t, third, false)
			seenAs(t, w.one, "udp", w.outside.of(f), w.gateway.of(f))
			alive(t, second, true)
		})
	}
}

// TestDestinationsChange adds and removes destinations of open connections.
func TestDestinationsChange(t *testing.T) {
	w := newWorld(t)
	k := w.open(t)
	s := w.setup()
	apply(t, k, s)
	for name, f := range families46 {
		t.Run(name, func(t *testing.T) {
			c := connect(t, w.one, w.outside.of(f))
			more := s
			more.Destinations = append([]netip.Prefix{rtnl.HostPrefix(w.other.of(f))}, s.Destinations...)
			apply(t, k, more)
			seenAs(t, w.one, "tcp", w.other.of(f), w.gateway.of(f))
			fewer := s
			fewer.Destinations = []netip.Prefix{rtnl.HostPrefix(w.other.of(f))}
			apply(t, k, fewer)
			unanswered(t, w.one, "tcp", w.outside.of(f))
			all := s
			all.Destinations = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
			apply(t, k, all)
			k.Forget()
			apply(t, k, all)
			seenAs(t, w.one, "tcp", w.other.of(f), w.gateway.of(f))
			apply(t, k, s)
			unanswered(t, w.one, "tcp", w.other.of(f))
			alive(t, c, true)
		})
	}
}

// TestTakesOver: a new process finds the state of the last one, changes nothing, and restores what is missing.
func TestTakesOver(t *testing.T) {
	w := newWorld(t)
	k := w.open(t)
	s := w.setup()
	apply(t, k, s)
	c4, c6 := connect(t, w.one, w.outside.of(4)), connect(t, w.two, w.outside.of(6))
	before := w.state(t)
	next := w.open(t)
	apply(t, next, s)
	if after := w.state(t); after != before {
		t.Errorf("taking over changed:\n%s\ninto\n%s", before, after)
	}
	alive(t, c4, true)
	alive(t, c6, true)

	// A client went while nobody was there.
	third := w.open(t)
	s.Clients = s.Clients[1:]
	apply(t, third, s)
	alive(t, c4, false)
	alive(t, c6, true)
	// And the one that ended it ended before it forgot the connections.
	s = w.setup()
	apply(t, third, s)
	c4 = connect(t, w.one, w.outside.of(4))
	conn := openNFT(t, third)
	must(t, remove(conn, w.one.addrs))
	apply(t, w.open(t), s)
	alive(t, c4, false)
	seenAs(t, w.one, "tcp", w.outside.of(4), w.gateway.of(4))

	// Somebody takes things away.
	within(t, w.gateway.path(), func() error {
		h, err := netlink.NewHandle()
		if err != nil {
			return err
		}
		defer h.Close()
		return errors.Join(ns.DeleteLink(h, "berth-egress4"), ns.DeleteLink(h, "berth-egress6"))
	})
	conn = openNFT(t, third)
	conn.FlushTable(table())
	must(t, conn.Flush())
	third.Forget()
	apply(t, third, s)
	for _, f := range families46 {
		seenAs(t, w.one, "tcp", w.outside.of(f), w.gateway.of(f))
	}
	// The device alone, of which the one who made it is not told to look again at all else.
	within(t, w.gateway.path(), func() error {
		h, err := netlink.NewHandle()
		if err != nil {
			return err
		}
		defer h.Close()
		return ns.DeleteLink(h, "berth-egress4")
	})
	apply(t, third, s)
	seenAs(t, w.one, "tcp", w.outside.of(4), w.gateway.of(4))
}

// TestNotForwarded: the error names the family without forwarding.
func TestNotForwarded(t *testing.T) {
	w := newWorld(t)
	within(t, w.gateway.path(), func() error {
		return ns.SetSysctls(ns.Sysctl{Name: "net/ipv6/conf/all/forwarding", Value: "0"})
	})
	k := w.open(t)
	err := k.Apply(t.Context(), w.setup())
	if !errors.Is(err, ErrNotForwarded) || !strings.Contains(err.Error(), "IPv6 needs net.ipv6.conf.all.forwarding") || strings.Contains(err.Error(), "IPv4") {
		t.Errorf("err = %v", err)
	}
	seenAs(t, w.one, "tcp", w.outside.of(4), w.gateway.of(4))
	only4 := w.setup()
	only4.Destinations = only4.Destinations[:2]
	apply(t, k, only4)
}

// TestConnectionsFull: existing connections continue when the table is full.
func TestConnectionsFull(t *testing.T) {
	w := newWorld(t)
	k := w.open(t)
	apply(t, k, w.setup())
	const limit, flows = 2000, 5000
	const setting = "/proc/sys/net/netfilter/nf_conntrack_max"
	was, err := os.ReadFile(setting)
	must(t, err)
	must(t, os.WriteFile(setting, []byte(fmt.Sprint(limit)), 0))
	t.Cleanup(func() { _ = os.WriteFile(setting, was, 0) })
	c := connect(t, w.one, w.outside.of(4))
	from, err := ns.ListenPacket(w.two.path(), netip.AddrPortFrom(netip.IPv4Unspecified(), 0))
	must(t, err)
	defer from.Close()
	for i := range flows {
		_, err := from.WriteToUDPAddrPort([]byte("x"), netip.AddrPortFrom(w.outside.of(4), uint16(10_000+i)))
		must(t, ignoreRefused(err))
	}
	refused, err := k.ConnectionsRefused()
	must(t, err)
	count, most, err := k.Connections()
	must(t, err)
	t.Logf("%d connections of %d, %d refused", count, most, refused)
	if count < limit*9/10 || count > limit || most != limit || refused == 0 {
		t.Errorf("%d connections of %d, %d refused", count, most, refused)
	}
	alive(t, c, true)
	s := w.setup()
	s.Clients = s.Clients[:1]
	apply(t, k, s) // the one that has them all goes
	if count, _, _ := k.Connections(); count > 100 {
		t.Errorf("%d connections after the client went", count)
	}
	alive(t, c, true)
	seenAs(t, w.one, "tcp", w.outside.of(4), w.gateway.of(4))
}

// ignoreRefused ignores ICMP errors about earlier datagrams.
func ignoreRefused(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && strings.Contains(op.Error(), "refused") {
		return nil
	}
	return err
}

// TestManyClients logs how long a thousand clients take, and one more.
func TestManyClients(t *testing.T) {
	w := newWorld(t)
	k := w.open(t)
	s := w.setup()
	a4, a6 := netip.MustParseAddr("10.9.0.0"), netip.MustParseAddr("fd09::")
	for i := range 1000 {
		a4, a6 = a4.Next(), a6.Next()
		s.Clients = append(s.Clients, Client{UID: fmt.Sprintf("uid-%d", i), Addrs: []netip.Addr{a4, a6}})
	}
	for _, what := range []string{"1,000 clients", "nothing", "another process"} {
		began := time.Now()
		apply(t, k, s)
		t.Logf("%s: %v", what, time.Since(began))
		if what == "nothing" {
			k = w.open(t)
		}
	}
	s.Clients = append(s.Clients, Client{UID: "more", Addrs: []netip.Addr{a4.Next(), a6.Next()}})
	began := time.Now()
	apply(t, k, s)
	t.Logf("one more: %v", time.Since(began))
	s.Clients = s.Clients[:len(s.Clients)-1]
	began = time.Now()
	apply(t, k, s)
	t.Logf("one less: %v", time.Since(began))
	seenAs(t, w.one, "tcp", w.outside.of(4), w.gateway.of(4))
	seenAs(t, w.two, "udp", w.outside.of(6), w.gateway.of(6))
}

// TestTimeExceeded has a client hear of a packet whose time to live ended at the gateway, as a trace of
// its path does.
func TestTimeExceeded(t *testing.T) {
	w := newWorld(t)
	k := w.open(t)
	apply(t, k, w.setup())
	for name, f := range families46 {
		t.Run(name, func(t *testing.T) {
			from, err := exceed(w.one, w.outside.of(f))
			if err != nil || from != w.gateway.of(f) {
				t.Errorf("time exceeded by %v (%v), want %s", from, err, w.gateway.of(f))
			}
		})
	}
}

// TestKilled has processes that change clients killed at any moment, while connections last. The next one
// finds all as it should be, and serves nobody whom the last one did not.
func TestKilled(t *testing.T) {
	w := newWorld(t)
	k := w.open(t)
	s := w.setup()
	apply(t, k, s)
	want := w.state(t)
	c4, c6 := connect(t, w.one, w.outside.of(4)), connect(t, w.two, w.outside.of(6))
	step := 1
	if testing.Short() {
		step = 3
	}
	for i := 0; i < 10; i += step {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"="+w.gateway.path())
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		_, err = bufio.NewReader(out).ReadString('\n') // it has begun
		must(t, err)
		<-time.After(time.Duration(i*37) * time.Millisecond)
		must(t, cmd.Process.Kill())
		_ = cmd.Wait()
		alive(t, c4, true)
		alive(t, c6, true)
	}
	apply(t, w.open(t), s)
	if got := w.state(t); got != want {
		t.Errorf("there is now\n%s\nwant\n%s", got, want)
	}
	alive(t, c4, true)
	alive(t, c6, true)
}

// childEnv has a process of the tests change clients of a gateway until it is killed.
const childEnv = "BERTH_TEST_GATEWAY"

func child(path string) error {
	k, err := Open(path)
	if err != nil {
		return err
	}
	s := newHosts().setup()
	fmt.Println("begun")
	for i := 0; ; i++ {
		more := s
		a4, a6 := netip.MustParseAddr("10.9.0.0"), netip.MustParseAddr("fd09::")
		for n := range 50 * (1 + i%3) {
			a4, a6 = a4.Next(), a6.Next()
			more.Clients = append(more.Clients, Client{UID: fmt.Sprintf("uid-%d-%d", i%2, n), Addrs: []netip.Addr{a4, a6}})
		}
		if err := k.Apply(context.Background(), more); err != nil {
			return err
		}
	}
}
