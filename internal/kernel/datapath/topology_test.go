package datapath

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// bed is a node of a test, and its pods' namespaces.
type bed struct {
	t    testing.TB
	host *space
	node *Node
}

// vpc is a node with two ENIs, each wired to a router that, like a VPC, drops a packet whose source does not belong
// to the ENI it came by (strict reverse path filtering over one route an address).
//
//	node eth0 (primary)   10.0.0.10 2001:db8::10 —— r0 router
//	node eth1 (secondary) 10.0.0.20              —— r1 router
//
// Behind the router are an internet host, an on-premises host and a VPC peer.
type vpc struct {
	bed
	router  *space
	config  Config // Uplinks unset
	uplinks VPC
}

const (
	internet   = "203.0.113.5"
	onPrem     = "192.168.7.5"
	peer       = "10.0.5.5"
	internet6  = "2001:db8:f::5"
	peer6      = "2001:db8:0:5::5"
	nodeAddr   = "10.0.0.10"
	nodeAddr6  = "2001:db8::10"
	eniAddr    = "10.0.0.20"
	eniPrefix  = "10.0.0.32/28"
	eniPrefix6 = "2001:db8:0:0:1::/80"
	eniAddr6   = "2001:db8::1:ffff:ffff:ffff" // the last of it
	firstPods  = "10.0.0.64/28"               // addresses of the primary ENI
	firstPods6 = "2001:db8:0:0:2::/80"
)

func newVPC(t testing.TB, edit ...func(*vpc)) *vpc {
	t.Helper()
	v := &vpc{bed: bed{t: t, host: newSpace(t, "node")}, router: newSpace(t, "router")}
	wire(v.host, "eth0", v.router, "r0")
	wire(v.host, "eth1", v.router, "r1")

	r := v.router
	for _, l := range []string{"all", "r0", "r1"} {
		r.sysctl("net/ipv4/conf/"+l+"/rp_filter", "1")
	}
	r.sysctl("net/ipv4/ip_forward", "1")
	r.sysctl("net/ipv6/conf/all/forwarding", "1")
	for _, a := range []string{"10.0.0.1/32", internet + "/32", onPrem + "/32", peer + "/32", "169.254.169.254/32",
		internet6 + "/128", peer6 + "/128", "fd00:ec2::254/128"} {
		r.address("lo", a)
	}
	r.address("r0", "fe80:ec2::1/64")
	r.address("r1", "fe80:ec2::1/64")
	// A VPC delivers to the ENI that owns an address without asking the link.
	for _, d := range []struct{ dst, via, link string }{
		{nodeAddr + "/32", "", "r0"}, {firstPods, nodeAddr, "r0"}, {eniAddr + "/32", "", "r1"}, {eniPrefix, eniAddr, "r1"},
		{nodeAddr6 + "/128", "", "r0"}, {firstPods6, "fe80::a", "r0"}, {eniPrefix6, "fe80::b", "r1"},
	} {
		r.route(d.dst, d.via, d.link)
	}
	for link, addrs := range map[string][]string{"r0": {nodeAddr6, "fe80::a"}, "r1": {"fe80::b"}} {
		for _, a := range addrs {
			mac := v.host.link("eth" + link[1:]).Attrs().HardwareAddr
			r.must(r.nl.NeighSet(rtnl.PermanentNeighbour(r.link(link).Attrs().Index, netip.MustParseAddr(a), mac)))
		}
	}
	h := v.host
	h.address("eth0", nodeAddr+"/24")
	h.address("eth0", nodeAddr6+"/64")
	h.route("0.0.0.0/0", "10.0.0.1", "eth0")
	h.route("::/0", "fe80:ec2::1", "eth0")

	v.uplinks = VPC{
		PrimaryMAC:   h.link("eth0").Attrs().HardwareAddr,
		PrimaryIPv4:  netip.MustParseAddr(nodeAddr),
		LocalCIDRs:   []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("2001:db8::/48")},
		ExcludeCIDRs: []netip.Prefix{netip.MustParsePrefix("192.168.0.0/16")},
	}
	for _, e := range edit {
		e(v)
	}
	v.node = h.open()
	v.setup()
	v.setUplink(v.uplink())
	return v
}

// as returns the node for a subtest, whose failures it reports and whose objects it removes.
func (v *vpc) as(t testing.TB) *vpc {
	c := *v
	c.bed, c.router = *v.bed.as(t), v.router.as(t)
	return &c
}

func (b *bed) as(t testing.TB) *bed { return &bed{t, b.host.as(t), b.node} }

func (v *vpc) setup() {
	v.t.Helper()
	v.bed.setup(v.settings())
}

func (b *bed) setup(c Config) {
	b.t.Helper()
	b.ok(b.node.Setup(ctx, c))
}

// ok ends the test with an error.
func (b *bed) ok(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// settings is the configuration of the node.
func (v *vpc) settings() Config {
	c := v.config
	c.Uplinks = v.uplinks
	return c
}

// eni is the secondary ENI.
func (v *vpc) uplink() Uplink {
	return Uplink{
		ID: "eni-2", MAC: v.host.link("eth1").Attrs().HardwareAddr, Number: 1,
		PrimaryIPv4: netip.MustParseAddr(eniAddr), Subnet: netip.MustParsePrefix("10.0.0.0/24"),
		Prefixes: []netip.Prefix{netip.MustParsePrefix(eniPrefix), netip.MustParsePrefix(eniPrefix6)},
	}
}

func (v *vpc) setUplink(e Uplink) {
	v.t.Helper()
	v.ok(v.node.SetUplink(ctx, e))
}

// pod is a sandbox with its link.
type pod struct {
	*space
	want  Pod
	links PodLinks
}

func (p *pod) as(t testing.TB) *pod {
	c := *p
	c.space = p.space.as(t)
	return &c
}

// sandbox makes a pod's namespace and description, no link yet.
func (b *bed) sandbox(addrs ...string) *pod {
	b.t.Helper()
	p := &pod{space: newSpace(b.t, "pod")}
	p.want = Pod{Netns: p.path(), IfName: "eth0", HostIfName: HostLinkName("net", p.name, "eth0")}
	for _, a := range addrs {
		if addr := netip.MustParseAddr(a); addr.Is4() {
			p.want.IPv4 = addr
		} else {
			p.want.IPv6 = addr
		}
	}
	return p
}

// pod makes a sandbox and attaches it.
func (b *bed) pod(addrs ...string) *pod {
	b.t.Helper()
	p := b.sandbox(addrs...)
	b.add(p)
	return p
}

// add is the kernel's part of an ADD; detach and reap are those of a DEL.
func (b *bed) add(p *pod) {
	b.t.Helper()
	var err error
	p.links, err = b.node.AddPod(ctx, p.want)
	b.ok(err)
}

func (b *bed) detach(p *pod) {
	b.t.Helper()
	b.ok(b.node.DetachPod(ctx, p.want.HostIfName, p.want.Addrs()))
}

func (b *bed) reap(p *pod) {
	b.t.Helper()
	b.ok(b.node.ReapLinks(ctx, []string{p.want.HostIfName}))
}

// remove is a complete DEL.
func (b *bed) remove(p *pod) {
	b.t.Helper()
	b.detach(p)
	b.reap(p)
}

// check asserts that CheckPod succeeds.
func (b *bed) check(p *pod) {
	b.t.Helper()
	if err := b.node.CheckPod(ctx, p.want); err != nil {
		b.t.Error(err)
	}
}

func (b *bed) inventory() Inventory {
	b.t.Helper()
	inv, err := b.node.Inventory(ctx)
	b.ok(err)
	return inv
}

// has asserts the numbers of pod links and pod routes on the node.
func (b *bed) has(links, routes int) {
	b.t.Helper()
	if inv := b.inventory(); len(inv.Links) != links || len(inv.Routes) != routes {
		b.t.Errorf("%d links and %d routes, want %d and %d: %+v %+v", len(inv.Links), len(inv.Routes), links, routes, inv.Links, inv.Routes)
	}
}

// repairs asserts that a repair does something, that its report has a text, and that a second one does nothing.
func (b *bed) repairs(w Desired, says string) {
	b.t.Helper()
	if did := b.repair(w); did == "" || !strings.Contains(did, says) {
		b.t.Errorf("repaired %q, want %q", did, says)
	}
	b.whole(w)
}

// whole asserts that there is nothing to repair.
func (b *bed) whole(w Desired) {
	b.t.Helper()
	if did := b.repair(w); did != "" {
		b.t.Errorf("repaired %q, want nothing", did)
	}
}

// repair asserts that a repair works and returns what it did.
func (b *bed) repair(w Desired) string {
	b.t.Helper()
	did, err := b.node.Repair(ctx, w)
	b.ok(err)
	return strings.Join(did, "; ")
}
