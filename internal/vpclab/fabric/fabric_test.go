package fabric

import (
	"context"
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
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/vpclab/echo"
	"github.com/berthnet/berth/internal/vpclab/ns"
	"github.com/berthnet/berth/internal/vpclab/vpc"
)

var subnets = []vpc.Subnet{
	{ID: "subnet-a", CIDR: netip.MustParsePrefix("10.0.0.0/20"), IPv6: netip.MustParsePrefix("2001:db8:1:0::/64")},
	{ID: "subnet-b", CIDR: netip.MustParsePrefix("10.0.16.0/20"), IPv6: netip.MustParsePrefix("2001:db8:1:1::/64")},
}

func anywhere(family string) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix(family)} }

// open lets everything through; closed only its own members, and out nothing.
var open = vpc.SecurityGroup{
	ID:      "sg-open",
	Ingress: []vpc.Rule{{Protocol: "-1", CIDRs: anywhere("0.0.0.0/0")}, {Protocol: "-1", CIDRs: anywhere("::/0")}},
	Egress:  []vpc.Rule{{Protocol: "-1", CIDRs: anywhere("0.0.0.0/0")}, {Protocol: "-1", CIDRs: anywhere("::/0")}},
}

// bed is a fabric under test with helpers that fail the test.
type bed struct {
	*Fabric
	t testing.TB
}

func raise(t testing.TB, groups ...vpc.SecurityGroup) *bed {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("the fabric's tests make network namespaces: run them as root")
	}
	f, err := New(Options{
		ID: fmt.Sprintf("t%x", rand.Uint32()), Subnets: subnets,
		CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("2001:db8:1::/56")},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if left, err := ns.List(Prefix(f.opts.ID)); err != nil || len(left) > 0 {
			t.Errorf("namespaces left behind: %v, %v", left, err)
		}
	})
	b := &bed{f, t}
	b.ok(f.SetGroups(append(groups, open)))
	return b
}

func (b *bed) ok(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// eni makes an ENI of the subnet that its primary address lies in.
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

// node adds a node with its primary ENI and a server that answers there.
func (b *bed) node(name string, primary vpc.ENI) {
	b.t.Helper()
	b.ok(b.AddNode(name))
	b.ok(b.Attach(name, primary))
	b.serve(b.NodePath(name))
}

func (b *bed) serve(path string) {
	b.t.Helper()
	s, err := echo.Serve(path)
	b.ok(err)
	b.t.Cleanup(func() { s.Close() })
}

// own puts addresses on a link of a node and sets it up, as a host would that uses them.
func (b *bed) own(node, link string, addrs ...string) {
	b.t.Helper()
	b.ok(ns.Do(b.NodePath(node), func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		l, err := h.LinkByName(link)
		if err != nil {
			return err
		}
		for _, a := range addrs {
			ip := netip.MustParseAddr(a)
			if err := addAddr(h, l, netip.PrefixFrom(ip, ip.BitLen())); err != nil {
				return err
			}
		}
		return h.LinkSetUp(l)
	}))
}

// ask is a UDP question with a source; an empty source leaves the choice to the kernel.
func (b *bed) ask(path, from, to string, wait time.Duration) (echo.Reply, error) {
	ctx, cancel := context.WithTimeout(b.t.Context(), wait)
	defer cancel()
	var local netip.Addr
	if from != "" {
		local = netip.MustParseAddr(from)
	}
	return echo.Ask(ctx, path, "udp", netip.AddrPortFrom(netip.MustParseAddr(to), echo.Port), local, "hello")
}

func (b *bed) reaches(path, from, to string) {
	b.t.Helper()
	r, err := b.ask(path, from, to, 5*time.Second)
	if err != nil {
		b.t.Fatalf("from %q to %s: %v\ndrops: %v", from, to, err, b.drops())
	}
	if from != "" && r.You.String() != from || r.Text != "hello" {
		b.t.Fatalf("from %q to %s: got %q", from, to, r)
	}
}

func (b *bed) blocked(path, from, to string) {
	b.t.Helper()
	if r, err := b.ask(path, from, to, 250*time.Millisecond); err == nil {
		b.t.Fatalf("from %q to %s: got through: %q", from, to, r)
	}
}

func (b *bed) drops() map[string]Drops {
	b.t.Helper()
	d, err := b.Drops()
	b.ok(err)
	return d
}

func (b *bed) dropped(eniID string, cause Cause) {
	b.t.Helper()
	if d := b.drops(); d[eniID][cause] == 0 {
		b.t.Fatalf("no %s drop counted for %s: %v", cause, eniID, d)
	}
}

func TestNodesReachEachOtherAndTheOutside(t *testing.T) {
	b := raise(t)
	b.node("a", eni("a", "10.0.0.10", 0))
	b.node("b", eni("b", "10.0.0.11", 0))  // same subnet: through proxied ARP
	b.node("c", eni("c", "10.0.16.10", 0)) // another subnet: through the router
	b.serve(b.InternetPath())
	b.serve(b.OnPremPath())
	for _, to := range []string{"10.0.0.11", "10.0.16.10", InternetHost.String(), OnPremHost.String()} {
		b.reaches(b.NodePath("a"), "10.0.0.10", to)
	}
	b.reaches(b.OnPremPath(), "", "10.0.16.10")
	b.reaches(b.InternetPath(), "", "10.0.0.10") // by its public address, which is the same here
	if d := b.drops(); len(d["eni-a"])+len(d["eni-b"])+len(d["eni-c"])+len(d["igw"]) != 0 {
		t.Errorf("good traffic was dropped: %v", d)
	}
}

// TestPathMTU sends more than a packet to where packets are smaller than on
// the ENI: the router has to say so, and the sender to hear it.
func TestPathMTU(t *testing.T) {
	b := raise(t)
	b.node("a", eni("a", "10.0.0.10", 0))
	b.node("b", eni("b", "10.0.0.11", 0))
	b.serve(b.InternetPath())
	long := strings.Repeat("x", 30000)
	for _, to := range []netip.Addr{netip.MustParseAddr("10.0.0.11"), InternetHost} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		r, err := echo.Ask(ctx, b.NodePath("a"), "tcp", netip.AddrPortFrom(to, echo.Port), netip.Addr{}, long)
		if err != nil || r.Text != long {
			t.Errorf("to %s: %d bytes of %d came back, %v", to, len(r.Text), len(long), err)
		}
	}
}

func TestDropsWhatAVPCDrops(t *testing.T) {
	b := raise(t)
	a := eni("a", "10.0.0.10", 0)
	a.Secondary = []netip.Addr{netip.MustParseAddr("10.0.0.20")}
	b.node("a", a)
	b.node("b", eni("b", "10.0.0.11", 0))
	b.serve(b.InternetPath())
	b.serve(b.OnPremPath())
	b.own("a", "ens5", "10.0.0.20", "10.0.0.99", "8.8.8.8", "10.0.0.11")
	path := b.NodePath("a")

	b.reaches(path, "10.0.0.20", "10.0.0.11") // a secondary address is fine inside
	b.reaches(path, "10.0.0.20", OnPremHost.String())
	for name, tc := range map[string]struct {
		from, to string
		cause    Cause
	}{
		"source that nobody owns":         {"10.0.0.99", OnPremHost.String(), Source},
		"source outside the VPC":          {"8.8.8.8", OnPremHost.String(), Source},
		"source of another ENI":           {"10.0.0.11", OnPremHost.String(), Source},
		"destination that nobody owns":    {"10.0.0.10", "10.0.17.77", Destination},
		"secondary address to internet":   {"10.0.0.20", InternetHost.String(), Gateway},
		"unowned address to the internet": {"10.0.0.99", InternetHost.String(), Source},
	} {
		t.Run(name, func(t *testing.T) {
			b := &bed{b.Fabric, t}
			before := b.drops()["eni-a"][tc.cause]
			b.blocked(path, tc.from, tc.to)
			if after := b.drops()["eni-a"][tc.cause]; after <= before {
				t.Errorf("%s drops: %d before and %d after: %v", tc.cause, before, after, b.drops())
			}
		})
	}
	b.blocked(b.InternetPath(), "", "10.0.0.20") // no public address leads there
	b.dropped("igw", Gateway)
}

func TestSourceCheckCanBeOff(t *testing.T) {
	b := raise(t)
	a := eni("a", "10.0.0.10", 0)
	b.node("a", a)
	b.node("b", eni("b", "10.0.0.11", 0))
	b.own("a", "ens5", "172.31.0.1")
	b.blocked(b.NodePath("a"), "172.31.0.1", "10.0.0.11")
	b.dropped("eni-a", Source)
	before := b.drops()["eni-a"][Source]
	a.SourceDestCheck = false
	b.ok(b.Update(a))
	// The answer goes the way of the internet, as a VPC without a route for it
	// would have it; that the question passed is what counts.
	b.blocked(b.NodePath("a"), "172.31.0.1", "10.0.0.11")
	if after := b.drops()["eni-a"][Source]; after != before {
		t.Errorf("source drops went from %d to %d with the check off", before, after)
	}
}

func TestAddressesComeAndGo(t *testing.T) {
	b := raise(t)
	a := eni("a", "10.0.0.10", 0)
	b.node("a", a)
	b.node("b", eni("b", "10.0.0.11", 0))
	b.own("a", "ens5", "10.0.0.20", "10.0.0.37")

	b.blocked(b.NodePath("b"), "", "10.0.0.20")
	b.blocked(b.NodePath("b"), "", "10.0.0.37")
	a.Secondary = []netip.Addr{netip.MustParseAddr("10.0.0.20")}
	a.Prefixes = []netip.Prefix{netip.MustParsePrefix("10.0.0.32/28")}
	b.ok(b.Update(a))
	b.reaches(b.NodePath("b"), "", "10.0.0.20")
	b.reaches(b.NodePath("b"), "", "10.0.0.37")
	b.reaches(b.NodePath("a"), "10.0.0.37", "10.0.0.11")
	a.Secondary, a.Prefixes = nil, nil
	b.ok(b.Update(a))
	b.blocked(b.NodePath("b"), "", "10.0.0.20")
	b.blocked(b.NodePath("a"), "10.0.0.37", "10.0.0.11")
}

func TestAddressMovesBetweenENIsInAnyOrder(t *testing.T) {
	for name, takeFirst := range map[string]bool{"new owner first": true, "old owner first": false} {
		t.Run(name, func(t *testing.T) {
			b := raise(t)
			moving := netip.MustParseAddr("10.0.0.20")
			x, y := eni("x", "10.0.0.10", 0), eni("y", "10.0.0.11", 0)
			x.Secondary = []netip.Addr{moving}
			b.node("x", x)
			b.node("y", y)
			b.own("y", "ens5", moving.String())
			x.Secondary, y.Secondary = nil, []netip.Addr{moving}
			if takeFirst {
				b.ok(b.Update(y))
				b.ok(b.Update(x))
			} else {
				b.ok(b.Update(x))
				b.ok(b.Update(y))
			}
			b.reaches(b.NodePath("x"), "10.0.0.10", moving.String())
		})
	}
}

func TestSecondaryENI(t *testing.T) {
	b := raise(t)
	b.node("a", eni("a", "10.0.0.10", 0))
	b.node("b", eni("b", "10.0.0.11", 0))
	second := eni("s", "10.0.16.20", 1)
	b.ok(b.Attach("a", second))
	l := b.link("a", "ens6")
	if l == nil {
		t.Fatal("no ens6 in the node")
	}
	if l.Attrs().HardwareAddr.String() != second.MAC.String() || l.Attrs().MTU != ENIMTU {
		t.Errorf("ens6 has MAC %s and MTU %d; want %s and %d", l.Attrs().HardwareAddr, l.Attrs().MTU, second.MAC, ENIMTU)
	}
	if l.Attrs().Flags&net.FlagUp != 0 {
		t.Error("a secondary ENI's link came up by itself; a VPC leaves it down")
	}
	// Delivered once up, whatever the host makes of it; strict rp_filter would drop it.
	b.ok(ns.Do(b.NodePath("a"), func() error {
		return ns.SetSysctls(ns.Sysctl{Name: "net/ipv4/conf/ens6/rp_filter", Value: "2"})
	}))
	b.own("a", "ens6", "10.0.16.20")
	// The answer leaves by ens5 with the source of ens6's ENI: dropped by the VPC.
	b.blocked(b.NodePath("b"), "", "10.0.16.20")
	b.dropped("eni-a", Source)

	b.ok(b.Detach(second.ID))
	if b.link("a", "ens6") != nil {
		t.Error("ens6 is still in the node after detaching")
	}
	b.ok(b.Detach(second.ID)) // again is fine
	if _, there := b.drops()[second.ID]; there {
		t.Error("counters of a detached ENI remain")
	}
	b.ok(b.Attach("a", second)) // and it can come back
	b.ok(b.RemoveNode("a"))
	b.blocked(b.NodePath("b"), "", "10.0.0.10")
	if names, _ := ns.List(Prefix(b.opts.ID) + "node-a"); len(names) != 0 {
		t.Error("the removed node's namespace is still there")
	}
}

// link returns a link of a node, nil when there is none.
func (b *bed) link(node, name string) netlink.Link {
	b.t.Helper()
	var l netlink.Link
	b.ok(ns.Do(b.NodePath(node), func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		l, err = h.LinkByName(name)
		if err != nil && !strings.Contains(err.Error(), "not found") {
			return err
		}
		return nil
	}))
	return l
}

func TestSecurityGroups(t *testing.T) {
	web := vpc.SecurityGroup{
		ID: "sg-web",
		Ingress: []vpc.Rule{
			{Protocol: "tcp", FromPort: echo.Port, ToPort: echo.Port, Groups: []string{"sg-client"}},
			{Protocol: "udp", FromPort: 7000, ToPort: 8000, CIDRs: anywhere("10.0.16.0/24")},
		},
	}
	client := vpc.SecurityGroup{
		ID:     "sg-client",
		Egress: []vpc.Rule{{Protocol: "tcp", FromPort: 0, ToPort: 65535, Groups: []string{"sg-web"}}},
	}
	b := raise(t, web, client)
	b.node("web", eni("web", "10.0.0.10", 0, web.ID))
	b.node("client", eni("client", "10.0.0.11", 0, client.ID))
	b.node("b", eni("b", "10.0.16.11", 0))
	b.node("far", eni("far", "10.0.17.11", 0))

	ask := func(node, network, to string, wait time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		_, err := echo.Ask(ctx, b.NodePath(node), network, netip.AddrPortFrom(netip.MustParseAddr(to), echo.Port), netip.Addr{}, "x")
		return err
	}
	for _, tc := range []struct {
		node, network, to string
		dropAt            string
		cause             Cause
	}{
		{"client", "tcp", "10.0.0.10", "", ""},                   // group to group, answers pass statefully
		{"b", "udp", "10.0.0.10", "", ""},                        // by block and port range
		{"far", "udp", "10.0.0.10", "eni-web", Ingress},          // outside the block
		{"b", "tcp", "10.0.0.10", "eni-web", Ingress},            // not of the group
		{"client", "udp", "10.0.0.10", "eni-client", Egress},     // wrong protocol on the way out
		{"client", "tcp", "10.0.16.11", "eni-client", Egress},    // wrong group on the way out
		{"b", "udp", "10.0.0.11", "eni-client", Ingress},         // no ingress rule at all
		{"web", "tcp", "10.0.16.11", "eni-web", Egress},          // no egress rule at all
		{"web", "udp", InternetHost.String(), "eni-web", Egress}, // the same to the outside
	} {
		t.Run(fmt.Sprintf("%s %s %s", tc.node, tc.network, tc.to), func(t *testing.T) {
			wait := 300 * time.Millisecond
			if tc.cause == "" {
				wait = 5 * time.Second
			}
			err := ask(tc.node, tc.network, tc.to, wait)
			if (err == nil) != (tc.cause == "") {
				t.Fatalf("got %v; drops %v", err, b.drops())
			}
			if tc.cause != "" {
				(&bed{b.Fabric, t}).dropped(tc.dropAt, tc.cause)
			}
		})
	}
	t.Run("rules and groups change", func(t *testing.T) {
		web.Ingress = nil
		b.ok(b.SetGroups([]vpc.SecurityGroup{web, client, open}))
		if err := ask("client", "tcp", "10.0.0.10", 300*time.Millisecond); err == nil {
			t.Error("got through after the rule was revoked")
		}
		b.ok(b.Update(eni("web", "10.0.0.10", 0, web.ID, open.ID)))
		if err := ask("client", "tcp", "10.0.0.10", 5*time.Second); err != nil {
			t.Errorf("a second group did not open the way: %v", err)
		}
		if err := ask("far", "udp", "10.0.0.10", 5*time.Second); err != nil {
			t.Errorf("a second group did not open the way: %v", err)
		}
	})
}

func TestIPv6(t *testing.T) {
	b := raise(t)
	a, c := eni("a", "10.0.0.10", 0), eni("c", "10.0.16.10", 0)
	a.IPv6 = []netip.Addr{netip.MustParseAddr("2001:db8:1::10")}
	a.IPv6Prefixes = []netip.Prefix{netip.MustParsePrefix("2001:db8:1:0:a::/80")}
	c.IPv6 = []netip.Addr{netip.MustParseAddr("2001:db8:1:1::10")}
	b.node("a", a)
	b.node("c", c)
	b.serve(b.InternetPath())
	b.serve(b.OnPremPath())
	b.own("a", "ens5", "2001:db8:1:0:a::5", "2001:db8:1::bad")
	for _, to := range []string{"2001:db8:1:1::10", InternetHost6.String(), OnPremHost6.String()} {
		b.reaches(b.NodePath("a"), "2001:db8:1::10", to)
		b.reaches(b.NodePath("a"), "2001:db8:1:0:a::5", to) // all IPv6 addresses are public
		b.blocked(b.NodePath("a"), "2001:db8:1::bad", to)
	}
	b.dropped("eni-a", Source)
	b.blocked(b.NodePath("a"), "2001:db8:1::10", "2001:db8:1:1::77")
	b.dropped("eni-a", Destination)

	// A host that takes the subnet for on-link asks by NDP.
	d := eni("d", "10.0.0.12", 0)
	d.IPv6 = []netip.Addr{netip.MustParseAddr("2001:db8:1::12")}
	b.node("d", d)
	b.ok(ns.Do(b.NodePath("d"), func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		l, err := h.LinkByName("ens5")
		if err != nil {
			return err
		}
		return h.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: ipNet(subnets[0].IPv6)})
	}))
	b.reaches(b.NodePath("d"), "2001:db8:1::12", "2001:db8:1::10")
}

func TestServicesOfTheCloud(t *testing.T) {
	b := raise(t)
	a := eni("a", "10.0.0.10", 0)
	a.Secondary = []netip.Addr{netip.MustParseAddr("10.0.0.20")}
	b.node("a", a)
	b.own("a", "ens5", "10.0.0.20")
	b.serve(b.RouterPath())
	b.reaches(b.NodePath("a"), "10.0.0.10", EC2Endpoint.String())
	b.reaches(b.NodePath("a"), "10.0.0.10", IMDSEndpoint.String())
	b.reaches(b.NodePath("a"), "10.0.0.20", IMDSEndpoint.String())
	b.blocked(b.NodePath("a"), "10.0.0.20", EC2Endpoint.String()) // public address, no gateway for this source
	b.dropped("igw", Gateway)
	b.reaches(b.NodePath("a"), "10.0.0.10", "10.0.0.1") // the subnet's router answers ARP
}

func TestFabricsSideBySide(t *testing.T) {
	for i := range 4 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			b := raise(t) // the same addresses in each
			b.node("a", eni("a", "10.0.0.10", 0))
			b.node("b", eni("b", "10.0.0.11", 0))
			b.reaches(b.NodePath("a"), "10.0.0.10", "10.0.0.11")
		})
	}
}

func TestSweepAfterACrash(t *testing.T) {
	b := raise(t)
	b.node("a", eni("a", "10.0.0.10", 0))
	b.ok(ns.Create(b.name("pod-a-x"))) // made by others under the prefix
	if _, err := New(b.opts); err == nil {
		t.Error("a second fabric of the same ID was raised over the first")
	} else if names, _ := ns.List(Prefix(b.opts.ID)); len(names) != 0 {
		t.Errorf("the failed one left %v", names)
	}
	if removed, err := Sweep(b.opts.ID); err != nil || len(removed) != 0 {
		t.Errorf("a second sweep removed %v, %v", removed, err)
	}
}

func TestOptions(t *testing.T) {
	for name, o := range map[string]Options{
		"no ID":            {},
		"dash in the ID":   {ID: "a-b"},
		"on-premises CIDR": {ID: "x", CIDRs: anywhere("192.168.0.0/16")},
		"internet CIDR":    {ID: "x", CIDRs: anywhere("203.0.0.0/8")},
	} {
		if f, err := New(o); err == nil {
			t.Errorf("%s: accepted", name)
			f.Close()
		}
	}
}
