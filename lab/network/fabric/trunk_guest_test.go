//go:build guest

package fabric

import (
	"context"
	"errors"
	"fmt"
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

// trunkOf attaches a trunk to a node as ens6.
func (b *harness) trunkOf(node, addr string) vpc.ENI {
	b.t.Helper()
	e := eni("trunk-"+node, addr, 1)
	e.Type = "trunk"
	b.ok(b.Attach(node, e))
	b.own(node, "ens6")
	return e
}

// branch returns an ENI as a branch of a trunk.
func branch(t vpc.ENI, vlan int, e vpc.ENI) vpc.ENI {
	e.Attachment, e.Trunk = nil, &vpc.Association{ID: "trunk-assoc-" + e.ID, TrunkID: t.ID, BranchID: e.ID, VLAN: vlan}
	return e
}

// pod creates a node's end of a branch, as Berth would: the VLAN on the trunk's link with the branch's MAC address, in the
// namespace of a pod with the branch's addresses, an echo server, and an IPv4 default route. The IPv6 default route
// comes from the router's advertisement. It returns the namespace.
func (b *harness) pod(node string, e vpc.ENI) string {
	b.t.Helper()
	name := b.opts.name("pod-" + e.ID)
	b.ok(ns.Create(name))
	path := ns.Path(name)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	b.ok(err)
	defer unix.Close(fd)
	link := fmt.Sprintf("ens6.%d", e.Trunk.VLAN)
	b.ok(ns.Netlink(b.NodePath(node), func(h *netlink.Handle) error {
		parent, err := h.LinkByName("ens6")
		if err != nil {
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.ParentIndex, attrs.HardwareAddr = link, parent.Attrs().Index, e.MAC
		l := &netlink.Vlan{LinkAttrs: attrs, VlanId: e.Trunk.VLAN, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q}
		if err := h.LinkAdd(l); err != nil {
			return err
		}
		return h.LinkSetNsFd(l, fd)
	}))
	b.ok(ns.Netlink(path, func(h *netlink.Handle) error {
		if err := ns.LinkUp(h, "lo"); err != nil {
			return err
		}
		i := slices.IndexFunc(subnets, func(s vpc.Subnet) bool { return s.ID == e.SubnetID })
		addrs := []netip.Prefix{netip.PrefixFrom(e.Primary, subnets[i].CIDR.Bits())}
		for _, a := range e.IPv6 {
			addrs = append(addrs, netip.PrefixFrom(a, 128))
		}
		return ns.Configure(h, link, addrs, []netip.Addr{RouterOf(subnets[i].CIDR)})
	}))
	b.serve(path)
	return path
}

// eventually waits for asynchronous changes in the kernel.
func (b *harness) eventually(what string, is func() bool) {
	b.t.Helper()
	for began := time.Now(); !is(); <-time.After(20 * time.Millisecond) {
		if time.Since(began) > patience {
			b.t.Fatalf("timed out after %v waiting for %s", patience, what)
		}
	}
}

// routed waits until a pod has its IPv6 default route, which its kernel solicits.
func (b *harness) routed(path string, vlan int) {
	b.t.Helper()
	b.eventually("an IPv6 default route from an advertisement", func() (has bool) {
		b.ok(ns.Netlink(path, func(h *netlink.Handle) (err error) {
			has, err = hasDefault6(h, fmt.Sprintf("ens6.%d", vlan))
			return err
		}))
		return has
	})
}

// noRouter checks that a pod's requests get no reply, because its VLAN has no router.
func (b *harness) noRouter(path, to string) {
	b.t.Helper()
	b.unanswered("from "+path+" to "+to, func(wait time.Duration) error {
		_, err := b.ask(path, "", to, 20*wait)
		return err
	}, func() (failed bool) {
		b.ok(ns.Netlink(path, func(h *netlink.Handle) error {
			list, err := h.NeighList(0, unix.AF_INET)
			failed = slices.ContainsFunc(list, func(n netlink.Neigh) bool { return n.State == unix.NUD_FAILED || n.State == unix.NUD_INCOMPLETE })
			return err
		}))
		return failed
	})
}

// A branch behaves like an ENI except for its link: it receives packets for its addresses, and cannot send from others.
func TestBranches(t *testing.T) {
	b := raise(t)
	b.node("a", eni("a", "10.0.0.10", 0))
	b.node("far", with6(eni("far", "10.0.0.11", 0), "2001:db8:1::11"))
	b.serve(b.RouterPath())
	b.serve(b.InternetPath())
	b.serve(b.OnPremPath())
	trunk := b.trunkOf("a", "10.0.0.12")
	p := branch(trunk, 7, with6(eni("p", "10.0.16.20", 1), "2001:db8:1:1::20"))
	p.Secondary = []netip.Addr{netip.MustParseAddr("10.0.16.30")}
	q := branch(trunk, 4094, with6(eni("q", "10.0.16.21", 1), "2001:db8:1:1::21"))
	pod := b.pod("a", p)
	other := b.pod("a", q)
	b.noRouter(pod, "10.0.0.11") // a VLAN without a branch
	b.ok(b.Associate(p))
	b.ok(b.Associate(q))
	b.routed(pod, 7)
	b.routed(other, 4094)

	for _, to := range []string{"10.0.0.11", "10.0.0.10", q.Primary.String(), OnPremHost.String(), IMDSEndpoint.String(), "10.0.16.1"} {
		b.reaches(pod, p.Primary.String(), to)
	}
	for _, to := range []string{"2001:db8:1::11", "2001:db8:1:1::21", OnPremHost6.String(), InternetHost6.String()} {
		b.reaches(pod, "2001:db8:1:1::20", to)
	}
	b.reaches(b.NodePath("far"), "", "10.0.16.20")
	b.reaches(b.NodePath("far"), "", "2001:db8:1:1::20")
	b.reaches(b.OnPremPath(), "", "10.0.16.21")

	// The MTU of a branch is that of an ENI, in addition to the VLAN tag.
	long := strings.Repeat("x", 30000)
	for _, to := range []string{"10.0.0.11", "2001:db8:1::11"} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		r, err := echo.Ask(ctx, pod, "tcp", netip.AddrPortFrom(netip.MustParseAddr(to), echo.Port), netip.Addr{}, long)
		cancel()
		if err != nil || r.Text != long {
			t.Errorf("reply from %s has %d of %d bytes, %v", to, len(r.Text), len(long), err)
		}
	}
	if mtu := b.mtu(pod, "ens6.7"); mtu != ENIMTU {
		t.Errorf("MTU of the pod's link = %d, want %d", mtu, ENIMTU)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := echo.Ask(ctx, pod, "udp", netip.AddrPortFrom(netip.MustParseAddr("10.0.0.11"), echo.Port), netip.Addr{}, long[:ENIMTU-28]); err != nil {
		t.Errorf("packet of %d bytes: %v", ENIMTU, err)
	}

	inPod := func(addr string) {
		t.Helper()
		b.ok(ns.Netlink(pod, func(h *netlink.Handle) error {
			l, err := h.LinkByName("ens6.7")
			if err != nil {
				return err
			}
			a := netip.MustParseAddr(addr)
			return ns.AddAddr(h, l, netip.PrefixFrom(a, a.BitLen()))
		}))
	}
	for _, spoofed := range []string{"10.0.16.99", q.Primary.String(), trunk.Primary.String(), "8.8.8.8"} {
		inPod(spoofed)
		b.blocked(pod, spoofed, OnPremHost.String(), p.ID, Source)
	}
	inPod("2001:db8:1:1::99")
	b.blocked(pod, "2001:db8:1:1::99", OnPremHost6.String(), p.ID, Source)
	b.blocked(pod, p.Primary.String(), "10.0.1.77", p.ID, Destination)
	b.blocked(pod, p.Primary.String(), InternetHost.String(), p.ID, Gateway) // a branch has no public address
	inPod("10.0.16.30")
	b.reaches(pod, "10.0.16.30", "10.0.0.11")
	p.Secondary = nil
	b.ok(b.Update(p))
	b.blocked(pod, "10.0.16.30", OnPremHost.String(), p.ID, Source)

	// Frames without a VLAN are the trunk's own traffic.
	b.ok(ns.Do(b.NodePath("a"), func() error {
		return ns.SetSysctls(ns.Sysctl{Name: "net/ipv4/conf/ens6/rp_filter", Value: "2"})
	}))
	b.inNode("a", func(h *netlink.Handle, _ netlink.Link) error {
		l, err := h.LinkByName("ens6")
		if err != nil {
			return err
		}
		return h.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: ns.IPNet(netip.PrefixFrom(OnPremHost, 32)), Gw: RouterOf(subnets[0].CIDR).AsSlice(), Flags: int(netlink.FLAG_ONLINK)})
	})
	b.own("a", "ens6", trunk.Primary.String(), "10.0.16.22")
	b.reaches(b.NodePath("a"), trunk.Primary.String(), OnPremHost.String())
	b.blocked(b.NodePath("a"), "10.0.16.22", OnPremHost.String(), trunk.ID, Source)
}

// A pod that considers its subnet on-link uses neighbour discovery. A pod that knows the router's address needs no
// advertisement.
func TestBranchesOnLink(t *testing.T) {
	b := raise(t)
	b.node("a", eni("a", "10.0.0.10", 0))
	b.serve(b.OnPremPath())
	trunk := b.trunkOf("a", "10.0.0.12")
	p, q := branch(trunk, 7, with6(eni("p", "10.0.16.20", 1), "2001:db8:1:1::20")), branch(trunk, 8, with6(eni("q", "10.0.16.21", 1), "2001:db8:1:1::21"))
	b.ok(b.Associate(p))
	b.ok(b.Associate(q))
	b.ok(ns.Netlink(b.NodePath("a"), func(h *netlink.Handle) error { // as the owner of the trunk may do
		l, err := h.LinkByName("ens6")
		if err != nil {
			return err
		}
		return errors.Join(h.LinkSetDown(l), h.LinkSetUp(l))
	}))
	for _, e := range []vpc.ENI{p, q} {
		pod := b.pod("a", e)
		b.ok(ns.Netlink(pod, func(h *netlink.Handle) error {
			name := fmt.Sprintf("ens6.%d", e.Trunk.VLAN)
			l, err := h.LinkByName(name)
			if err != nil {
				return err
			}
			if err := h.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: ns.IPNet(subnets[1].IPv6)}); err != nil {
				return err
			}
			return ns.DefaultRoutes(h, name, []netip.Addr{VPCRouter6})
		}))
		if e.ID == q.ID {
			b.reaches(pod, "2001:db8:1:1::21", OnPremHost6.String())
			b.reaches(pod, "2001:db8:1:1::21", "2001:db8:1:1::20")
		}
	}
}

func (b *harness) mtu(path, link string) (mtu int) {
	b.t.Helper()
	b.ok(ns.Netlink(path, func(h *netlink.Handle) error {
		l, err := h.LinkByName(link)
		if err == nil {
			mtu = l.Attrs().MTU
		}
		return err
	}))
	return mtu
}

// A branch ends with its association or its trunk. Another branch may then use its VLAN.
func TestBranchLifecycle(t *testing.T) {
	b := raise(t)
	b.node("a", eni("a", "10.0.0.10", 0))
	b.node("far", eni("far", "10.0.0.11", 0))
	trunk := b.trunkOf("a", "10.0.0.12")
	p, q := branch(trunk, 7, eni("p", "10.0.16.20", 1)), branch(trunk, 7, eni("q", "10.0.16.21", 1))
	b.ok(b.Associate(p))
	if err := b.Associate(p); err == nil {
		t.Error("a branch was associated twice")
	}
	if err := b.Associate(q); err == nil {
		t.Error("two branches share a VLAN")
	}
	pod := b.pod("a", p)
	b.reaches(pod, "", "10.0.0.11")
	b.ok(b.Detach(p.ID))
	b.ok(b.Detach(p.ID)) // a repeated detach succeeds
	if _, there := b.drops()[p.ID]; there {
		t.Error("counters of a former branch still exist")
	}
	b.unowned("far", "eni-far", "10.0.16.20")
	before := b.received("far")
	if _, err := b.ask(pod, "", "10.0.0.11", time.Second); err == nil || b.received("far") != before {
		t.Errorf("former branch still sends packets: %v", err)
	}

	// The next branch with the VLAN has a different MAC address, so that the first one's link receives nothing for it.
	b.ok(b.Associate(q))
	b.blocked(pod, p.Primary.String(), OnPremHost.String(), q.ID, Source)
	b.ok(ns.Netlink(pod, func(h *netlink.Handle) error { return ns.DeleteLink(h, "ens6.7") }))
	b.reaches(b.pod("a", q), q.Primary.String(), "10.0.0.11")

	r := branch(trunk, 8, eni("r", "10.0.16.22", 1))
	b.ok(b.Associate(r))
	b.ok(b.Detach(trunk.ID))
	for _, id := range []string{trunk.ID, q.ID, r.ID} {
		if _, there := b.drops()[id]; there {
			t.Errorf("counters of %s still exist after its trunk was detached", id)
		}
	}
	b.unowned("far", "eni-far", "10.0.16.22")
	b.ok(b.Attach("a", trunk)) // and it can be attached again
	b.ok(b.Associate(r))
	b.own("a", "ens6")
	b.reaches(b.pod("a", r), "", "10.0.0.11")
	b.ok(b.RemoveNode("a"))
	if len(b.enis) != 1 {
		t.Errorf("ENIs after RemoveNode() = %v, want one", b.attached())
	}
}

// The security groups of a branch apply independently of those of its trunk and of other branches, and rules that name a
// group match its branches.
func TestBranchSecurityGroups(t *testing.T) {
	port := func(protocol string) vpc.Rule {
		return vpc.Rule{Protocol: protocol, FromPort: echo.Port, ToPort: echo.Port}
	}
	fromClients := port("udp")
	fromClients.Groups = []string{"sg-client"}
	web := vpc.SecurityGroup{ID: "sg-web", Ingress: []vpc.Rule{fromClients}}
	client := vpc.SecurityGroup{ID: "sg-client", Egress: open.Egress}
	shut := vpc.SecurityGroup{ID: "sg-shut"}
	b := raise(t, web, client, shut)
	b.node("a", with6(eni("a", "10.0.0.10", 0), "2001:db8:1::10"))
	b.node("c", with6(eni("c", "10.0.0.11", 0, client.ID), "2001:db8:1::11"))
	trunk := b.trunkOf("a", "10.0.0.12")
	paths := map[string]string{}
	enis := map[string]vpc.ENI{}
	for i, of := range []struct{ name, group string }{{"web", web.ID}, {"client", client.ID}, {"shut", shut.ID}, {"open", open.ID}} {
		e := eni(of.name, fmt.Sprintf("10.0.16.%d", 20+i), 1, of.group)
		e = branch(trunk, 20+i, with6(e, fmt.Sprintf("2001:db8:1:1::%d", 20+i)))
		b.ok(b.Associate(e))
		enis[of.name], paths[of.name] = e, b.pod("a", e)
		b.routed(paths[of.name], 20+i)
	}
	web4, web6 := enis["web"].Primary.String(), enis["web"].IPv6[0].String()
	for _, to := range []string{web4, web6} {
		b.reaches(paths["client"], "", to)                     // group to group, on one trunk
		b.reaches(b.NodePath("c"), "", to)                     // from an ENI of the group
		b.blocked(paths["open"], "", to, "eni-web", Ingress)   // not from the group
		b.blocked(b.NodePath("a"), "", to, "eni-web", Ingress) // not from the branch's own node
		b.blocked(paths["shut"], "", to, "eni-shut", Egress)   // no egress
	}
	for _, to := range []string{enis["shut"].Primary.String(), enis["shut"].IPv6[0].String()} {
		b.blocked(paths["open"], "", to, "eni-shut", Ingress) // no ingress
		b.blocked(b.NodePath("c"), "", to, "eni-shut", Ingress)
	}
	moved := enis["open"]
	moved.Groups = []string{open.ID, client.ID}
	b.ok(b.Update(moved)) // like ModifyNetworkInterfaceAttribute
	b.reaches(paths["open"], "", web4)
	b.reaches(paths["open"], "", web6)
	b.ok(b.Detach("eni-client"))
	web.Ingress = nil
	b.ok(b.SetGroups([]vpc.SecurityGroup{web, client, shut, open}))
	b.blocked(paths["open"], "", web4, "eni-web", Ingress)
	b.blocked(paths["open"], "", web6, "eni-web", Ingress)
}
