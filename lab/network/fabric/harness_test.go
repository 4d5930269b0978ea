package fabric

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	inet6 "golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/network/echo"
)

var subnets = []vpc.Subnet{
	{ID: "subnet-a", CIDR: netip.MustParsePrefix("10.0.0.0/20"), IPv6: netip.MustParsePrefix("2001:db8:1:0::/64")},
	{ID: "subnet-b", CIDR: netip.MustParsePrefix("10.0.16.0/20"), IPv6: netip.MustParsePrefix("2001:db8:1:1::/64")},
}

func anywhere(family string) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix(family)} }

// open allows everything; closed only allows its own members, and no egress.
var open = vpc.SecurityGroup{
	ID:      "sg-open",
	Ingress: []vpc.Rule{{Protocol: "-1", CIDRs: anywhere("0.0.0.0/0")}, {Protocol: "-1", CIDRs: anywhere("::/0")}},
	Egress:  []vpc.Rule{{Protocol: "-1", CIDRs: anywhere("0.0.0.0/0")}, {Protocol: "-1", CIDRs: anywhere("::/0")}},
}

// harness is a fabric under test with helpers that fail the test.
type harness struct {
	*Fabric
	t testing.TB
}

func raise(t testing.TB, groups ...vpc.SecurityGroup) *harness {
	t.Helper()
	return raiseWith(t, Options{}, groups...)
}

// raiseWith is raise with options. It sets ID and CIDRs, and subnets if there are none.
func raiseWith(t testing.TB, o Options, groups ...vpc.SecurityGroup) *harness {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("the fabric's tests create network namespaces: run them as root")
	}
	o.ID = fmt.Sprintf("t%x", rand.Uint32())
	if o.Subnets == nil {
		o.Subnets = subnets
	}
	o.CIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("2001:db8:1::/56")}
	f, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if left, err := ns.List(Prefix(f.opts.ID)); err != nil || len(left) > 0 {
			t.Errorf("namespaces after Close() = %v, %v; want none", left, err)
		}
	})
	b := &harness{f, t}
	b.ok(f.SetGroups(append(groups, open)))
	return b
}

func (b *harness) ok(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// eni returns an ENI of the subnet that contains its primary address.
func eni(id, primary string, index int, groups ...string) vpc.ENI {
	a := netip.MustParseAddr(primary)
	b := a.As4()
	i := slices.IndexFunc(subnets, func(s vpc.Subnet) bool { return s.CIDR.Contains(a) })
	if len(groups) == 0 {
		groups = []string{open.ID}
	}
	return vpc.ENI{
		ID: "eni-" + id, SubnetID: subnets[i].ID, Primary: a, Groups: groups, SourceDestCheck: true,
		MAC:        net.HardwareAddr{0x0a, 0, b[0], b[1], b[2], b[3]},
		Attachment: &vpc.Attachment{InstanceID: "i-x", DeviceIndex: index},
	}
}

// with6 returns the ENI with an IPv6 address.
func with6(e vpc.ENI, addr string) vpc.ENI {
	e.IPv6 = []netip.Addr{netip.MustParseAddr(addr)}
	return e
}

// node adds a node with its primary ENI and an echo server.
func (b *harness) node(name string, primary vpc.ENI) {
	b.t.Helper()
	b.ok(b.AddNode(name))
	b.ok(b.Attach(name, primary))
	b.serve(b.NodePath(name))
}

func (b *harness) serve(path string) {
	b.t.Helper()
	s, err := echo.Serve(path)
	b.ok(err)
	b.t.Cleanup(func() { s.Close() })
}

// own assigns addresses to a link of a node and sets it up, as the host would.
func (b *harness) own(node, link string, addrs ...string) {
	b.t.Helper()
	b.ok(ns.Netlink(b.NodePath(node), func(h *netlink.Handle) error {
		l, err := h.LinkByName(link)
		if err != nil {
			return err
		}
		for _, a := range addrs {
			ip := netip.MustParseAddr(a)
			if err := ns.AddAddr(h, l, netip.PrefixFrom(ip, ip.BitLen())); err != nil {
				return err
			}
		}
		return h.LinkSetUp(l)
	}))
}

// ask sends a UDP request from a source; if empty, the kernel chooses the source.
func (b *harness) ask(path, from, to string, wait time.Duration) (echo.Reply, error) {
	ctx, cancel := context.WithTimeout(b.t.Context(), wait)
	defer cancel()
	var local netip.Addr
	if from != "" {
		local = netip.MustParseAddr(from)
	}
	return echo.Ask(ctx, path, "udp", netip.AddrPortFrom(netip.MustParseAddr(to), echo.Port), local, "hello")
}

func (b *harness) reaches(path, from, to string) {
	b.t.Helper()
	r, err := b.ask(path, from, to, patience)
	if err != nil {
		b.t.Fatalf("request from %q to %s: %v\ndrops: %v", from, to, err, b.drops())
	}
	if from != "" && r.You.String() != from || r.Text != "hello" {
		b.t.Fatalf("request from %q to %s: source seen as %q, want %q", from, to, r, from)
	}
}

// patience is the timeout for operations that may be slow on a busy machine.
const patience = time.Minute

// unanswered sends requests until seen reports that one was dropped. It fails if one is answered, or at the timeout.
// The repetition makes it reliable on a busy machine, where the first request may not even have left.
func (b *harness) unanswered(question string, ask func(wait time.Duration) error, seen func() bool) {
	b.t.Helper()
	for began := time.Now(); time.Since(began) < patience; {
		if err := ask(50 * time.Millisecond); err == nil {
			b.t.Fatalf("%s: got a reply, want none", question)
		}
		if seen() {
			return
		}
	}
	b.t.Fatalf("%s: neither a reply nor a counted drop: %v", question, b.drops())
}

// counted reports whether an ENI's drops for a cause have increased since the call.
func (b *harness) counted(eniID string, cause Cause) func() bool {
	b.t.Helper()
	before := b.drops()[eniID][cause]
	return func() bool { return b.drops()[eniID][cause] > before }
}

// blocked sends a request, and wants the fabric to count a drop for it and no reply.
func (b *harness) blocked(path, from, to, eniID string, cause Cause) {
	b.t.Helper()
	b.unanswered(fmt.Sprintf("from %q to %s", from, to), func(wait time.Duration) error {
		_, err := b.ask(path, from, to, wait)
		return err
	}, b.counted(eniID, cause))
}

// unowned sends requests from a node to an address on its subnet that no ENI owns: neighbour discovery fails, or the
// router drops the packets.
func (b *harness) unowned(node, eniID, to string) {
	b.t.Helper()
	b.inNode(node, func(*netlink.Handle, netlink.Link) error { // give up after 0.15 s instead of 3 s
		return ns.SetSysctls(ns.Sysctl{Name: "net/ipv4/neigh/ens5/retrans_time_ms", Value: "50"})
	})
	dropped := b.counted(eniID, Destination)
	b.unanswered("from "+node+" to "+to, func(time.Duration) error {
		_, err := b.ask(b.NodePath(node), "", to, 250*time.Millisecond)
		return err
	}, func() bool { return dropped() || b.noNeighbour(node, to) })
}

// noNeighbour reports whether the kernel of a node has given up neighbour discovery.
func (b *harness) noNeighbour(node, addr string) (failed bool) {
	b.t.Helper()
	b.inNode(node, func(h *netlink.Handle, l netlink.Link) error {
		list, err := h.NeighList(l.Attrs().Index, unix.AF_INET)
		failed = slices.ContainsFunc(list, func(n netlink.Neigh) bool {
			return n.IP.String() == addr && n.State == unix.NUD_FAILED
		})
		return err
	})
	return failed
}

// inNode runs f in a node's namespace with its primary link.
func (b *harness) inNode(node string, f func(h *netlink.Handle, ens5 netlink.Link) error) {
	b.t.Helper()
	b.ok(ns.Netlink(b.NodePath(node), func(h *netlink.Handle) error {
		l, err := h.LinkByName("ens5")
		if err != nil {
			return err
		}
		return f(h, l)
	}))
}

func (b *harness) drops() map[string]Drops {
	b.t.Helper()
	d, err := b.Drops()
	b.ok(err)
	return d
}

// received returns the number of datagrams that the sockets of a node's namespace received.
func (b *harness) received(node string) (n int) {
	b.t.Helper()
	b.ok(ns.Do(b.NodePath(node), func() error {
		text, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		// Two lines for each protocol: the names of the counters, and their values.
		for line := range strings.Lines(string(text)) {
			if _, err := fmt.Sscanf(line, "Udp: %d", &n); err == nil { // InDatagrams is the first
				return nil
			}
		}
		return fmt.Errorf("no UDP counters in %q", text)
	}))
	return n
}

// link returns a link of a node, or nil.
func (b *harness) link(node, name string) netlink.Link {
	b.t.Helper()
	var l netlink.Link
	b.ok(ns.Netlink(b.NodePath(node), func(h *netlink.Handle) (err error) {
		l, err = h.LinkByName(name)
		if err != nil && !strings.Contains(err.Error(), "not found") {
			return err
		}
		return nil
	}))
	return l
}

// solicit makes a node solicit advertisements (RFC 4861, section 4.1), and returns the first one with its hop limit.
func (b *harness) solicit(node string) (hops int, advert []byte) {
	b.t.Helper()
	var conn *inet6.PacketConn
	var link int
	b.inNode(node, func(_ *netlink.Handle, ens5 netlink.Link) error {
		link = ens5.Attrs().Index
		c, err := net.ListenPacket("ip6:ipv6-icmp", "::")
		if err != nil {
			return err
		}
		conn = inet6.NewPacketConn(c)
		var filter inet6.ICMPFilter
		filter.SetAll(true)
		filter.Accept(inet6.ICMPTypeRouterAdvertisement)
		return errors.Join(conn.SetICMPFilter(&filter), conn.SetControlMessage(inet6.FlagHopLimit, true))
	})
	defer conn.Close()
	buf := make([]byte, 1500)
	for began := time.Now(); time.Since(began) < patience; {
		// Nothing is sent until the link has an address to send from.
		_, _ = conn.WriteTo([]byte{byte(inet6.ICMPTypeRouterSolicitation), 0, 0, 0, 0, 0, 0, 0},
			&inet6.ControlMessage{HopLimit: neighbourHops, IfIndex: link}, &net.IPAddr{IP: net.IPv6linklocalallrouters})
		b.ok(conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond)))
		if n, cm, _, err := conn.ReadFrom(buf); err == nil {
			return cm.HopLimit, buf[:n]
		}
	}
	b.t.Fatalf("no advertisement for node %s within %v", node, patience)
	return 0, nil
}
