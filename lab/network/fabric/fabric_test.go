package fabric

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/network/echo"
)

func TestNodeConnectivity(t *testing.T) {
	b := raise(t)
	b.node("a", eni("a", "10.0.0.10", 0))
	b.node("b", eni("b", "10.0.0.11", 0))  // same subnet: through proxy ARP
	b.node("c", eni("c", "10.0.16.10", 0)) // another subnet: through the router
	b.serve(b.InternetPath())
	b.serve(b.OnPremPath())
	for _, to := range []string{"10.0.0.11", "10.0.16.10", InternetHost.String(), OnPremHost.String()} {
		b.reaches(b.NodePath("a"), "10.0.0.10", to)
	}
	b.reaches(b.OnPremPath(), "", "10.0.16.10")
	b.reaches(b.InternetPath(), "", "10.0.0.10") // by its public address, which is identical here
	if d := b.drops(); len(d["eni-a"])+len(d["eni-b"])+len(d["eni-c"])+len(d["igw"]) != 0 {
		t.Errorf("allowed traffic was dropped: %v", d)
	}
}

// TestPathMTU sends large packets to destinations with a smaller MTU than the ENI's: the router must report it, and
// the sender must adapt.
func TestPathMTU(t *testing.T) {
	b := raise(t)
	b.node("a", with6(eni("a", "10.0.0.10", 0), "2001:db8:1::10"))
	b.node("b", with6(eni("b", "10.0.0.11", 0), "2001:db8:1::11"))
	b.serve(b.InternetPath())
	long := strings.Repeat("x", 30000)
	for _, to := range []netip.Addr{netip.MustParseAddr("10.0.0.11"), InternetHost, netip.MustParseAddr("2001:db8:1::11"), InternetHost6} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		r, err := echo.Ask(ctx, b.NodePath("a"), "tcp", netip.AddrPortFrom(to, echo.Port), netip.Addr{}, long)
		if err != nil || r.Text != long {
			t.Errorf("reply from %s has %d of %d bytes, %v", to, len(r.Text), len(long), err)
		}
	}
	// TCP adapts to the other side's maximum segment size; the sender of a datagram gets an error.
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ask := func() error {
		_, err := echo.Ask(ctx, b.NodePath("a"), "udp", netip.AddrPortFrom(InternetHost6, echo.Port), netip.Addr{}, long[:5000])
		return err
	}
	err := ask()
	if errors.Is(err, unix.EMSGSIZE) {
		err = ask()
	}
	if err != nil {
		t.Errorf("datagram of 5000 bytes to %s: %v", InternetHost6, err)
	}
	var learned int
	b.inNode("a", func(h *netlink.Handle, _ netlink.Link) error {
		routes, err := h.RouteGetWithOptions(InternetHost6.AsSlice(), &netlink.RouteGetOptions{})
		if err == nil {
			learned = routes[0].MTU
		}
		return err
	})
	if learned != GatewayMTU {
		t.Errorf("learned MTU towards the internet over IPv6 = %d, want %d from Packet Too Big", learned, GatewayMTU)
	}
}

func TestForbiddenPacketsAreDropped(t *testing.T) {
	b := raise(t)
	a := eni("a", "10.0.0.10", 0)
	a.Secondary = []netip.Addr{netip.MustParseAddr("10.0.0.20")}
	b.node("a", a)
	b.node("b", eni("b", "10.0.0.11", 0))
	b.serve(b.InternetPath())
	b.serve(b.OnPremPath())
	b.own("a", "ens5", "10.0.0.20", "10.0.0.99", "8.8.8.8", "10.0.0.11")
	path := b.NodePath("a")

	b.reaches(path, "10.0.0.20", "10.0.0.11") // a secondary address may be used within the VPC
	b.reaches(path, "10.0.0.20", OnPremHost.String())
	for name, tc := range map[string]struct {
		from, to string
		cause    Cause
	}{
		"unowned source":                    {"10.0.0.99", OnPremHost.String(), Source},
		"source outside the VPC":            {"8.8.8.8", OnPremHost.String(), Source},
		"source of another ENI":             {"10.0.0.11", OnPremHost.String(), Source},
		"destination that nobody owns":      {"10.0.0.10", "10.0.17.77", Destination},
		"secondary address to the internet": {"10.0.0.20", InternetHost.String(), Gateway},
		"unowned address to the internet":   {"10.0.0.99", InternetHost.String(), Source},
	} {
		t.Run(name, func(t *testing.T) {
			b := &harness{b.Fabric, t}
			b.blocked(path, tc.from, tc.to, "eni-a", tc.cause)
		})
	}
	b.blocked(b.InternetPath(), "", "10.0.0.20", gatewayCounter, Gateway) // no public address maps to it
}

func TestDisabledSourceCheck(t *testing.T) {
	b := raise(t)
	a := eni("a", "10.0.0.10", 0)
	b.node("a", a)
	b.node("b", eni("b", "10.0.0.11", 0))
	b.own("a", "ens5", "172.31.0.1")
	b.blocked(b.NodePath("a"), "172.31.0.1", "10.0.0.11", "eni-a", Source)
	a.SourceDestCheck = false
	b.ok(b.Update(a))
	before := b.drops()["eni-a"][Source] // after packets in flight have arrived
	// As in a VPC without another route, the reply leaves through the internet gateway; it is enough that
	// the request arrives.
	arrived := b.received("b")
	b.unanswered("request with the check off", func(wait time.Duration) error {
		_, err := b.ask(b.NodePath("a"), "172.31.0.1", "10.0.0.11", wait)
		return err
	}, func() bool { return b.received("b") > arrived })
	if after := b.drops()["eni-a"][Source]; after != before {
		t.Errorf("source drops changed from %d to %d with the check off", before, after)
	}
}

func TestAddressAssignment(t *testing.T) {
	b := raise(t)
	a := eni("a", "10.0.0.10", 0)
	b.node("a", a)
	b.node("b", eni("b", "10.0.0.11", 0))
	b.own("a", "ens5", "10.0.0.20", "10.0.0.37")

	b.unowned("b", "eni-b", "10.0.0.20")
	b.unowned("b", "eni-b", "10.0.0.37")
	a.Secondary = []netip.Addr{netip.MustParseAddr("10.0.0.20")}
	a.Prefixes = []netip.Prefix{netip.MustParsePrefix("10.0.0.32/28")}
	b.ok(b.Update(a))
	b.reaches(b.NodePath("b"), "", "10.0.0.20")
	b.reaches(b.NodePath("b"), "", "10.0.0.37")
	b.reaches(b.NodePath("a"), "10.0.0.37", "10.0.0.11")
	a.Secondary, a.Prefixes = nil, nil
	b.ok(b.Update(a))
	b.unowned("b", "eni-b", "10.0.0.20")
	b.blocked(b.NodePath("a"), "10.0.0.37", "10.0.0.11", "eni-a", Source)
}

func TestAddressReassignmentInAnyOrder(t *testing.T) {
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
		t.Fatal("node has no link ens6")
	}
	if l.Attrs().HardwareAddr.String() != second.MAC.String() || l.Attrs().MTU != ENIMTU {
		t.Errorf("ens6 has MAC address %s and MTU %d; want %s and %d", l.Attrs().HardwareAddr, l.Attrs().MTU, second.MAC, ENIMTU)
	}
	if l.Attrs().Flags&net.FlagUp != 0 {
		t.Error("link of a secondary ENI is up, want down as in a VPC")
	}
	// Delivered once the link is up, whatever the host does with it; strict rp_filter would drop it.
	b.ok(ns.Do(b.NodePath("a"), func() error {
		return ns.SetSysctls(ns.Sysctl{Name: "net/ipv4/conf/ens6/rp_filter", Value: "2"})
	}))
	b.own("a", "ens6", "10.0.16.20")
	// The reply leaves through ens5 with the address of ens6's ENI as its source: the VPC drops it.
	b.blocked(b.NodePath("b"), "", "10.0.16.20", "eni-a", Source)

	b.ok(b.Detach(second.ID))
	if b.link("a", "ens6") != nil {
		t.Error("ens6 still exists after Detach()")
	}
	b.ok(b.Detach(second.ID)) // a repeated detach succeeds
	if _, there := b.drops()[second.ID]; there {
		t.Error("counters of a detached ENI still exist")
	}
	b.ok(b.Attach("a", second)) // and it can be attached again
	b.ok(b.RemoveNode("a"))
	b.unowned("b", "eni-b", "10.0.0.10")
	if names, _ := ns.List(Prefix(b.opts.ID) + "node-a"); len(names) != 0 {
		t.Error("namespace of the removed node still exists")
	}
}

// The links of different network cards have different names, and only index 0 of card 0 is a primary ENI: the
// others are down and have no public address.
func TestNetworkCards(t *testing.T) {
	b := raise(t)
	b.node("a", eni("a", "10.0.0.10", 0))
	for i, link := range []string{"enp1s5", "enp1s6", "enp2s6"} {
		e := eni(link, fmt.Sprintf("10.0.16.%d", 20+i), []int{0, 1, 1}[i])
		e.Attachment.NetworkCard = []int{1, 1, 2}[i]
		b.ok(b.Attach("a", e))
		l := b.link("a", link)
		if l == nil || l.Attrs().HardwareAddr.String() != e.MAC.String() || l.Attrs().Flags&net.FlagUp != 0 {
			t.Fatalf("link %s = %+v, want down with MAC address %s", link, l, e.MAC)
		}
	}
	efa := eni("efa", "10.0.16.30", 3)
	efa.Type, efa.Primary = "efa-only", netip.Addr{}
	b.ok(b.Attach("a", efa))
	if b.link("a", "ens8") != nil {
		t.Error("an EFA-only ENI has a link")
	}
	b.ok(b.Update(efa))
	b.ok(b.Detach(efa.ID))
	b.serve(b.InternetPath())
	b.own("a", "ens5", "10.0.16.20")
	b.blocked(b.NodePath("a"), "10.0.16.20", InternetHost.String(), "eni-a", Source)
	b.blocked(b.InternetPath(), "", "10.0.16.20", gatewayCounter, Gateway)
}

// Branches are tested in trunk_guest_test.go, which requires a kernel with VLANs.
func TestAssociateErrors(t *testing.T) {
	b := raise(t)
	b.node("a", eni("a", "10.0.0.10", 0))
	e := eni("p", "10.0.16.20", 1)
	if err := b.Associate(e); err == nil || !strings.Contains(err.Error(), "no association") {
		t.Errorf("Associate() of an ENI without association = %v, want error", err)
	}
	e.Trunk = &vpc.Association{TrunkID: "eni-trunk", VLAN: 7}
	if err := b.Associate(e); err == nil || !strings.Contains(err.Error(), "eni-trunk is not attached") {
		t.Errorf("Associate() with an unattached trunk = %v, want error", err)
	}
	b.ok(b.Detach(e.ID))
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
		{"client", "tcp", "10.0.0.10", "", ""},                   // group to group; replies pass statefully
		{"b", "udp", "10.0.0.10", "", ""},                        // from a block, with a port range
		{"far", "udp", "10.0.0.10", "eni-web", Ingress},          // outside the block
		{"b", "tcp", "10.0.0.10", "eni-web", Ingress},            // not from the group
		{"client", "udp", "10.0.0.10", "eni-client", Egress},     // wrong egress protocol
		{"client", "tcp", "10.0.16.11", "eni-client", Egress},    // wrong egress group
		{"b", "udp", "10.0.0.11", "eni-client", Ingress},         // no ingress rule at all
		{"web", "tcp", "10.0.16.11", "eni-web", Egress},          // no egress rule at all
		{"web", "udp", InternetHost.String(), "eni-web", Egress}, // the same to the outside
	} {
		t.Run(fmt.Sprintf("%s %s %s", tc.node, tc.network, tc.to), func(t *testing.T) {
			b := &harness{b.Fabric, t}
			try := func(wait time.Duration) error { return ask(tc.node, tc.network, tc.to, wait) }
			if tc.cause != "" {
				b.unanswered("request", try, b.counted(tc.dropAt, tc.cause))
			} else if err := try(patience); err != nil {
				t.Fatalf("%v; drops = %v", err, b.drops())
			}
		})
	}
	t.Run("rules and groups change", func(t *testing.T) {
		web.Ingress = nil
		b := &harness{b.Fabric, t}
		b.ok(b.SetGroups([]vpc.SecurityGroup{web, client, open}))
		b.unanswered("request after the rule was revoked", func(wait time.Duration) error {
			return ask("client", "tcp", "10.0.0.10", wait)
		}, b.counted("eni-web", Ingress))
		b.ok(b.Update(eni("web", "10.0.0.10", 0, web.ID, open.ID)))
		if err := ask("client", "tcp", "10.0.0.10", patience); err != nil {
			t.Errorf("request after adding a second group: %v", err)
		}
		if err := ask("far", "udp", "10.0.0.10", patience); err != nil {
			t.Errorf("request after adding a second group: %v", err)
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
		b.blocked(b.NodePath("a"), "2001:db8:1::bad", to, "eni-a", Source)
	}
	b.blocked(b.NodePath("a"), "2001:db8:1::10", "2001:db8:1:1::77", "eni-a", Destination)

	// The router responds on the link-local address that it has in every VPC.
	b.inNode("a", func(h *netlink.Handle, l netlink.Link) error {
		return ns.DefaultRoutes(h, l.Attrs().Name, []netip.Addr{netip.MustParseAddr("fe80:ec2::1")})
	})
	b.reaches(b.NodePath("a"), "2001:db8:1::10", "2001:db8:1:1::10")

	// A host that considers the subnet on-link uses neighbour discovery.
	d := eni("d", "10.0.0.12", 0)
	d.IPv6 = []netip.Addr{netip.MustParseAddr("2001:db8:1::12")}
	b.node("d", d)
	b.inNode("d", func(h *netlink.Handle, l netlink.Link) error {
		return h.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: ns.IPNet(subnets[0].IPv6)})
	})
	b.reaches(b.NodePath("d"), "2001:db8:1::12", "2001:db8:1::10")
}

// A node in an IPv6-only subnet has no IPv4 address, and reaches IPv6 hosts.
func TestIPv6OnlyNode(t *testing.T) {
	six := vpc.Subnet{ID: "subnet-six", IPv6: netip.MustParsePrefix("2001:db8:1:6::/64")}
	b := raiseWith(t, Options{Subnets: append(slices.Clone(subnets), six)})
	e := with6(eni("six", "10.0.0.66", 0), "2001:db8:1:6::10")
	e.SubnetID, e.Primary = six.ID, netip.Addr{}
	b.node("six", e)
	b.node("a", with6(eni("a", "10.0.0.10", 0), "2001:db8:1::10"))
	b.serve(b.InternetPath())
	for _, to := range []string{"2001:db8:1::10", InternetHost6.String()} {
		b.reaches(b.NodePath("six"), e.IPv6[0].String(), to)
	}
	b.reaches(b.NodePath("a"), "2001:db8:1::10", e.IPv6[0].String())
	b.inNode("six", func(h *netlink.Handle, l netlink.Link) error {
		if addrs, err := h.AddrList(l, unix.AF_INET); err != nil || len(addrs) > 0 {
			t.Errorf("IPv4 addresses = %v, %v; want none", addrs, err)
		}
		routes, err := h.RouteList(l, unix.AF_INET)
		if len(routes) > 0 {
			t.Errorf("IPv4 routes = %v, want none", routes)
		}
		return err
	})
}

// An egress-only internet gateway only allows connections from inside.
func TestEgressOnlyGateway(t *testing.T) {
	b := raiseWith(t, Options{EgressOnly: true})
	b.node("a", with6(eni("a", "10.0.0.10", 0), "2001:db8:1::10"))
	b.serve(b.InternetPath())
	b.serve(b.OnPremPath())
	b.reaches(b.NodePath("a"), "2001:db8:1::10", InternetHost6.String())
	b.blocked(b.InternetPath(), "", "2001:db8:1::10", gatewayCounter, Gateway)
	b.reaches(b.InternetPath(), "", "10.0.0.10") // IPv4 has a separate gateway
	b.reaches(b.OnPremPath(), "", "2001:db8:1::10")
}

// ICMPv6 errors pass the security groups as part of the connection that they belong to, even without an ingress
// rule.
func TestICMPv6ErrorsPassSecurityGroups(t *testing.T) {
	shut := vpc.SecurityGroup{ID: "sg-shut", Egress: []vpc.Rule{{Protocol: "udp", FromPort: 0, ToPort: 65535, CIDRs: anywhere("::/0")}}}
	b := raise(t, shut)
	b.node("a", with6(eni("a", "10.0.0.10", 0, shut.ID), "2001:db8:1::10"))
	b.node("c", with6(eni("c", "10.0.16.10", 0), "2001:db8:1:1::10"))
	for _, to := range []netip.Addr{netip.MustParseAddr("2001:db8:1:1::10"), InternetHost6} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		_, err := echo.Ask(ctx, b.NodePath("a"), "udp", netip.AddrPortFrom(to, 9), netip.Addr{}, "x")
		cancel()
		if !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("request to a closed port of %s: %v, want connection refused", to, err)
		}
	}
}

func TestIPv6SecurityGroups(t *testing.T) {
	web := vpc.SecurityGroup{
		ID: "sg-web",
		Ingress: []vpc.Rule{
			{Protocol: "udp", FromPort: echo.Port, ToPort: echo.Port, CIDRs: anywhere("2001:db8:1:1::/64")},
			{Protocol: "udp", FromPort: echo.Port, ToPort: echo.Port, CIDRs: anywhere("0.0.0.0/0")},
		},
		Egress: []vpc.Rule{{Protocol: "udp", FromPort: 0, ToPort: 65535, CIDRs: anywhere("2001:db8:1:1:b::/80")}},
	}
	b := raise(t, web)
	b.node("web", with6(eni("web", "10.0.0.10", 0, web.ID), "2001:db8:1::10"))
	b.node("near", with6(eni("near", "10.0.0.11", 0), "2001:db8:1::11"))
	far := with6(eni("far", "10.0.16.11", 0), "2001:db8:1:1::11")
	far.IPv6Prefixes = anywhere("2001:db8:1:1:b::/80")
	b.node("far", far)
	b.own("far", "ens5", "2001:db8:1:1:b::7")
	b.serve(b.InternetPath())
	b.reaches(b.NodePath("far"), "2001:db8:1:1::11", "2001:db8:1::10")
	b.reaches(b.NodePath("near"), "", "10.0.0.10") // by the IPv4 rule
	b.blocked(b.NodePath("near"), "2001:db8:1::11", "2001:db8:1::10", "eni-web", Ingress)
	b.blocked(b.InternetPath(), "", "2001:db8:1::10", "eni-web", Ingress)
	b.reaches(b.NodePath("web"), "2001:db8:1::10", "2001:db8:1:1:b::7")
	b.blocked(b.NodePath("web"), "2001:db8:1::10", "2001:db8:1:1::11", "eni-web", Egress)
	b.blocked(b.NodePath("web"), "10.0.0.10", "10.0.16.11", "eni-web", Egress)
}

// The kernel of a node takes its IPv6 default route from the router's advertisement. The route expires with its
// lifetime, and a node loses it when it starts to forward, unless accept_ra is 2. The router replies to
// solicitations.
func TestRouterAdvertisements(t *testing.T) {
	b := raise(t)
	b.node("a", with6(eni("a", "10.0.0.10", 0), "2001:db8:1::10"))
	b.node("c", with6(eni("c", "10.0.16.10", 0), "2001:db8:1:1::10"))
	b.node("old", eni("old", "10.0.0.12", 0)) // without an IPv6 address
	kernels := func(node string) (routes []netlink.Route) {
		b.inNode(node, func(h *netlink.Handle, l netlink.Link) error {
			list, err := h.RouteList(l, unix.AF_INET6)
			for _, r := range list {
				if r.Gw != nil && r.Gw.String() == Router6.String() && r.Protocol == unix.RTPROT_RA {
					routes = append(routes, r)
				}
			}
			return err
		})
		return routes
	}
	if got := kernels("a"); len(got) != 1 {
		t.Fatalf("default routes from advertisements = %v, want one", got)
	}
	forward := func(node, acceptRA string) {
		b.inNode(node, func(*netlink.Handle, netlink.Link) error {
			return ns.SetSysctls(ns.Sysctl{Name: "net/ipv6/conf/ens5/accept_ra", Value: acceptRA}, ns.Sysctl{Name: "net/ipv6/conf/all/forwarding", Value: "1"})
		})
	}
	b.serve(b.InternetPath())
	forward("a", "2")
	forward("c", "1")
	if got := kernels("a"); len(got) != 1 {
		t.Errorf("default routes of a forwarding node with accept_ra=2 = %v, want one", got)
	}
	if got := kernels("c"); len(got) != 0 {
		t.Errorf("default routes of a forwarding node with accept_ra=1 = %v, want none", got)
	}
	b.reaches(b.NodePath("a"), "2001:db8:1::10", InternetHost6.String())
	moved := with6(eni("c", "10.0.16.10", 0), "2001:db8:1:1::10")
	b.inNode("c", func(*netlink.Handle, netlink.Link) error {
		return ns.SetSysctls(ns.Sysctl{Name: "net/ipv6/conf/default/forwarding", Value: "1"})
	})
	b.ok(b.Detach(moved.ID))
	b.ok(b.Attach("c", moved)) // Attach does not wait for an advertisement that the node ignores
	if got := kernels("c"); len(got) != 0 {
		t.Errorf("default routes on a new link of a forwarding node = %v, want none", got)
	}
	hops, advert := b.solicit("old")
	if hops != neighbourHops || advert[4] != advertHopLimit || advert[5] != advertManaged || binary.BigEndian.Uint16(advert[6:]) != 1800 || len(advert) != 16 {
		t.Errorf("advertisement = hop limit %d, % x", hops, advert)
	}
}

func TestCloudServices(t *testing.T) {
	b := raise(t)
	a := eni("a", "10.0.0.10", 0)
	a.Secondary = []netip.Addr{netip.MustParseAddr("10.0.0.20")}
	b.node("a", a)
	b.own("a", "ens5", "10.0.0.20")
	b.serve(b.RouterPath())
	b.reaches(b.NodePath("a"), "10.0.0.10", EC2Endpoint.String())
	b.reaches(b.NodePath("a"), "10.0.0.10", IMDSEndpoint.String())
	b.reaches(b.NodePath("a"), "10.0.0.20", IMDSEndpoint.String())
	b.blocked(b.NodePath("a"), "10.0.0.20", EC2Endpoint.String(), gatewayCounter, Gateway) // public address, but no gateway for this source
	b.reaches(b.NodePath("a"), "10.0.0.10", "10.0.0.1")                                    // the subnet's router replies to ARP
}

func TestFabricsAreIsolated(t *testing.T) {
	for i := range 4 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			b := raise(t) // same addresses in each
			b.node("a", eni("a", "10.0.0.10", 0))
			b.node("b", eni("b", "10.0.0.11", 0))
			b.reaches(b.NodePath("a"), "10.0.0.10", "10.0.0.11")
		})
	}
}

func TestSweepAfterCrash(t *testing.T) {
	b := raise(t)
	b.node("a", eni("a", "10.0.0.10", 0))
	b.ok(ns.Create(b.opts.name("pod-a-x"))) // created by others with the prefix
	if _, err := New(b.opts); err == nil {
		t.Error("New() succeeded although a fabric with the same ID exists")
	} else if names, _ := ns.List(Prefix(b.opts.ID)); len(names) != 0 {
		t.Errorf("failed New() left namespaces %v", names)
	}
	if removed, err := Sweep(b.opts.ID); err != nil || len(removed) != 0 {
		t.Errorf("second Sweep() removed %v, %v", removed, err)
	}
}

func TestInvalidOptions(t *testing.T) {
	for name, o := range map[string]Options{
		"no ID":            {},
		"dash in the ID":   {ID: "a-b"},
		"on-premises CIDR": {ID: "x", CIDRs: anywhere("192.168.0.0/16")},
		"internet CIDR":    {ID: "x", CIDRs: anywhere("203.0.0.0/8")},
	} {
		if f, err := New(o); err == nil {
			t.Errorf("%s: New() succeeded, want an error", name)
			f.Close()
		}
	}
}
