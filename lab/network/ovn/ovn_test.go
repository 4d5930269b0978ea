package ovn

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/ovs"
	"github.com/berthnet/berth/internal/kernel/plug/ovsdb"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/run/poll"
)

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Println("these tests create network namespaces: run them as root")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// bench is an OVN with nodes a and b, and ports plugged into them as berthd does.
type bench struct {
	t     *testing.T
	ctx   context.Context
	ovn   *OVN
	nodes map[string]string // namespaces
	plugs map[string]*ovs.Plugger
}

func newBench(t *testing.T) *bench {
	t.Helper()
	if err := Installed(); err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	b := &bench{t: t, ctx: ctx, nodes: map[string]string{}, plugs: map[string]*ovs.Plugger{}}
	dir, err := os.MkdirTemp("", "ovn") // t.TempDir's paths are too long for sockets
	b.ok(err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	router := b.space("router")
	b.ovn, err = Start(ctx, Options{Dir: filepath.Join(dir, "ovn"), Netns: router})
	b.ok(err)
	t.Cleanup(func() {
		if err := b.ovn.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, n := range []string{"a", "b"} {
		b.nodes[n] = b.space("node" + n)
		s, err := b.ovn.AddNode(ctx, "node-"+n, b.nodes[n], filepath.Join(dir, n, "run"), filepath.Join(dir, n, "var"))
		b.ok(err)
		db, err := ovsdb.New(s.Endpoint(), slog.New(slog.DiscardHandler))
		b.ok(err)
		t.Cleanup(db.Close)
		p, err := ovs.New(ovs.Options{Netns: b.nodes[n], OVSDB: db})
		b.ok(err)
		t.Cleanup(p.Close)
		b.plugs[n] = p
	}
	return b
}

func (b *bench) ok(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) space(name string) string {
	b.t.Helper()
	name = fmt.Sprintf("ovt%d-%s", os.Getpid()%100000, name)
	b.ok(ns.Create(name))
	b.t.Cleanup(func() {
		if err := ns.Remove(name); err != nil {
			b.t.Error(err)
		}
	})
	return ns.Path(name)
}

// pod creates a pod on a node with a port of a state, and an echo server.
func (b *bench) pod(node string, p Port, gateway string) *plug.Want {
	b.t.Helper()
	path := b.space("p" + p.ID[:4])
	hw, err := net.ParseMAC(p.MAC)
	b.ok(err)
	w := plug.Want{
		Ref: plug.Ref{Attachment: "bth" + p.ID[:4], PortID: p.ID, Kind: plug.OVS, Bridge: Bridge, Pod: plug.Pod{Netns: path, IfName: "eth0"}},
		Interface: plug.Interface{
			MAC: hw, MTU: 1442, Default: true,
			Gateways: []netip.Addr{netip.MustParseAddr(gateway)}, Addresses: []netip.Prefix{netip.PrefixFrom(p.Addrs[0], 24)},
		},
		OVN: true,
	}
	_, err = b.plugs[node].Plug(b.ctx, w)
	b.ok(err)
	b.ok(b.plugs[node].Await(b.ctx, w))
	e, err := echo.Serve(path)
	b.ok(err)
	b.t.Cleanup(func() { _ = e.Close() })
	return &w
}

// ask sends a message from a pod to an address.
func (b *bench) ask(w *plug.Want, to string, within time.Duration) error {
	ctx, cancel := context.WithTimeout(b.ctx, within)
	defer cancel()
	_, err := echo.Ask(ctx, w.Pod.Netns, "tcp", netip.AddrPortFrom(netip.MustParseAddr(to), echo.Port), netip.Addr{}, strings.Repeat("x", 20))
	return err
}

func (b *bench) reaches(w *plug.Want, to string) {
	b.t.Helper()
	if err := poll.Retry(b.ctx, func() error { return b.ask(w, to, 5*time.Second) }, func(error) bool { return b.ctx.Err() == nil }); err != nil {
		b.t.Errorf("%s does not reach %s: %v", w.PortID, to, err)
	}
}

func (b *bench) doesNotReach(w *plug.Want, to string) {
	b.t.Helper()
	if b.ask(w, to, 500*time.Millisecond) == nil {
		b.t.Errorf("%s reaches %s, want no reply", w.PortID, to)
	}
}

const (
	open   = "0a0a0a0a-0000-4000-8000-000000000001"
	closed = "0b0b0b0b-0000-4000-8000-000000000002"
	blue   = "11111111-0000-4000-8000-000000000003"
	green  = "22222222-0000-4000-8000-000000000004"
)

func port(n int, addr, host string, groups ...string) Port {
	return Port{
		ID: fmt.Sprintf("%04x0000-aaaa-4000-8000-%012x", n, n), MAC: fmt.Sprintf("fa:16:3e:00:00:%02x", n),
		Addrs: []netip.Addr{netip.MustParseAddr(addr)}, Host: host, Groups: groups,
	}
}

// Pods of one network reach each other across nodes and subnets if their groups allow it, and no pods of another network.
func TestNetworksAndGroups(t *testing.T) {
	b := newBench(t)
	groups := []Group{
		{ID: open, Rules: []Rule{{Egress: true}, {Protocol: "tcp"}}},
		{ID: closed, Rules: []Rule{{Egress: true}}},
	}
	web, db, far, other := port(1, "192.168.0.10", "node-a", open), port(2, "192.168.0.20", "node-b", closed), port(3, "192.168.1.30", "node-b", open), port(4, "192.168.0.40", "node-b", open)
	state := State{Groups: groups, Networks: []Network{
		{ID: blue, Gateways: []netip.Prefix{netip.MustParsePrefix("192.168.0.1/24"), netip.MustParsePrefix("192.168.1.1/24")}, Ports: []Port{web, db, far}},
		{ID: green, Gateways: []netip.Prefix{netip.MustParsePrefix("192.168.0.1/24")}, Ports: []Port{other}},
	}}
	up := make(chan string, 100)
	b.ovn.OnUp(func(port string, is bool) { up <- fmt.Sprint(port[:4], is) })
	b.ok(b.ovn.Apply(b.ctx, state))
	onA, onB := b.pod("a", web, "192.168.0.1"), b.pod("b", db, "192.168.0.1")
	b.pod("b", far, "192.168.1.1")
	onGreen := b.pod("b", other, "192.168.0.1")
	b.waitFor(up, "0001true")

	b.reaches(onB, "192.168.0.10")
	b.reaches(onA, "192.168.1.30") // through the router
	b.doesNotReach(onA, "192.168.0.20")
	b.doesNotReach(onA, "192.168.0.40")
	b.doesNotReach(onGreen, "192.168.0.10")

	state.Groups = []Group{groups[0], {ID: closed, Rules: []Rule{{Egress: true}, {Protocol: "tcp", Port: echo.Port, Members: open}}}}
	b.ok(b.ovn.Apply(b.ctx, state))
	b.reaches(onA, "192.168.0.20")

	rows, err := b.ovn.Switch("node-b").Interfaces(b.ctx)
	b.ok(err)
	if len(rows) != 3 || rows[0].Port != db.ID || rows[0].Link != "tap00020000-aa" || rows[0].IDs["attached-mac"] != db.MAC {
		t.Errorf("Interfaces() of node-b = %+v, want three rows with port %s first", rows, db.ID)
	}

	// Deleting a port disconnects its pod from the network.
	b.ok(b.plugs["a"].Unplug(b.ctx, onA.Ref))
	b.waitFor(up, "0001false")
	state.Networks[0].Ports = state.Networks[0].Ports[:1:1]
	b.ok(b.ovn.Apply(b.ctx, state))
	b.waitFor(up, "0002false")
	b.doesNotReach(onB, "192.168.0.1")
	b.ok(b.ovn.Alive())
	b.ok(b.ovn.RemoveNode("node-b"))
	b.ok(b.ovn.RemoveNode("node-b"))
}

func (b *bench) waitFor(up <-chan string, want string) {
	b.t.Helper()
	for {
		select {
		case got := <-up:
			if got == want {
				return
			}
		case <-b.ctx.Done():
			b.t.Fatalf("no notification %s", want)
		}
	}
}

func TestRuleMatch(t *testing.T) {
	for want, r := range map[string]Rule{
		"outport == @pg_g_1 && ((ip4) || (ip6))":                                                {},
		"inport == @pg_g_1 && ((ip4) || (ip6))":                                                 {Egress: true},
		"outport == @pg_g_1 && ((ip4 && icmp4) || (ip6 && icmp6))":                              {Protocol: "icmp"},
		"outport == @pg_g_1 && ((ip4 && ip4.src == 10.0.0.0/8)) && tcp && tcp.dst == 80":        {Protocol: "tcp", Port: 80, Remote: netip.MustParsePrefix("10.1.2.3/8")},
		"inport == @pg_g_1 && ((ip4 && ip4.dst == $pg_h_ip4) || (ip6 && ip6.dst == $pg_h_ip6))": {Egress: true, Members: "h"},
		"outport == @pg_g_1 && ((ip6 && ip6.src == fd00::/8)) && udp":                           {Protocol: "udp", Remote: netip.MustParsePrefix("fd00::/8")},
	} {
		if got := r.match("g-1"); got != want {
			t.Errorf("match of %+v:\n got %s\nwant %s", r, got, want)
		}
	}
}

// A port may have the address of another port that is removed in the same transaction.
func TestReuseAddressOfRemovedPort(t *testing.T) {
	if err := Installed(); err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	dir, err := os.MkdirTemp("", "ovn") // t.TempDir's paths are too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b := &bench{t: t}
	v, err := Start(t.Context(), Options{Dir: dir, Netns: b.space("router")})
	b.ok(err)
	t.Cleanup(func() { b.ok(v.Close()) })
	for i := range 3 {
		b.ok(v.Apply(t.Context(), State{
			Groups:   []Group{{ID: open}},
			Networks: []Network{{ID: blue, Ports: []Port{port(1+i, "192.168.0.10", "node-a", open)}}},
		}))
	}
}

// Unchanged state causes no commands, and removed objects are deleted.
func TestChangesBetweenStates(t *testing.T) {
	p := port(1, "192.168.0.10", "node-a", open)
	full := State{
		Groups:   []Group{{ID: open, Rules: []Rule{{}}}},
		Networks: []Network{{ID: blue, Gateways: []netip.Prefix{netip.MustParsePrefix("192.168.0.1/24")}, Ports: []Port{p}}},
	}
	if c := changes(full, full, false); len(c) != 0 {
		t.Errorf("changes without a difference = %q, want none", c)
	}
	bound, free := full, p
	free.Host = ""
	bound.Networks = []Network{{ID: blue, Gateways: full.Networks[0].Gateways, Ports: []Port{free}}}
	if c := changes(full, bound, false); len(c) != 1 || !slices.Equal(c[0], []string{"lsp-set-options", p.ID}) {
		t.Errorf("changes to unbind a port = %q, want lsp-set-options", c)
	}
	var gone []string
	for _, c := range changes(full, State{}, false) {
		gone = append(gone, strings.Join(c, " "))
	}
	want := []string{"--if-exists lsp-del " + p.ID, "clear Port_Group pg_drop ports", "pg-del " + word(open), "--if-exists lr-del " + blue + "-router", "--if-exists ls-del " + blue}
	if !slices.Equal(gone, want) {
		t.Errorf("changes to the empty state:\n got %q\nwant %q", gone, want)
	}
}
