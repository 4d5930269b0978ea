//go:build guest

package routedvlan

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/plugtest"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
	"github.com/berthnet/berth/internal/kernel/plug/vlan"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

var (
	primaryMAC = net.HardwareAddr{0x0a, 0xff, 0xff, 0, 2, 1}
	trunkMAC   = net.HardwareAddr{0x0a, 0xff, 0xff, 0, 0, 1}
	gateway6   = netip.MustParseAddr("fe80:ec2::1")
)

// plan has the addresses of one IP family.
type plan struct {
	node, router netip.Prefix // addresses of their primary links
	outside      netip.Addr   // outside the VPC
	inVPC        netip.Addr   // another machine of the VPC
	local        []netip.Prefix
	metadata     netip.Addr
	service      func(n byte) netip.Addr
	pod          func(vlan, host int) netip.Prefix // in the subnet of a VLAN, counted from 7
	ip, nft      string                            // the family in ip(8) and nft(8)
}

var plans = map[ipfamily.Family]plan{
	ipfamily.IPv4: {
		node: netip.MustParsePrefix("10.0.0.10/24"), router: netip.MustParsePrefix("10.0.0.1/24"),
		outside: netip.MustParseAddr("203.0.113.1"), inVPC: netip.MustParseAddr("10.0.9.9"), metadata: netip.MustParseAddr("169.254.169.254"),
		local:   []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("192.168.0.0/16")},
		service: func(n byte) netip.Addr { return netip.AddrFrom4([4]byte{172, 20, 0, n}) },
		pod: func(vlan, host int) netip.Prefix {
			return netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 168, byte(vlan - 7), byte(host)}), 24)
		},
		ip: "-4", nft: "ip",
	},
	ipfamily.IPv6: {
		node: netip.MustParsePrefix("2001:db8:0:ff::10/64"), router: netip.MustParsePrefix("2001:db8:0:ff::1/64"),
		outside: netip.MustParseAddr("2001:db8:ffff::1"), inVPC: netip.MustParseAddr("2001:db8:0:fe::9"), metadata: netip.MustParseAddr("fd00:ec2::254"),
		local:   []netip.Prefix{netip.MustParsePrefix("2001:db8::/48")},
		service: func(n byte) netip.Addr { return netip.AddrFrom16([16]byte{0xfd, 0x20, 15: n}) },
		pod: func(vlan, host int) netip.Prefix {
			return netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 7: byte(vlan - 7), 15: byte(host)}), 64)
		},
		ip: "-6", nft: "ip6",
	},
}

// podAt is the address of the pod in a VLAN.
func (p plan) podAt(vlan int) netip.Addr { return p.pod(vlan, 12).Addr() }

// world is a node with its data path, a primary ENI and a trunk, and the VPC's router, which also
// stands in for all other machines. Like a VPC, it drops packets whose source address does not
// belong to the link.
type world struct {
	t            *testing.T
	node, router *podif.Namespace
	families     ipfamily.Set // of ports; empty: IPv4
	shift        uint
	patience     time.Duration // how long to wait for an answer that may not arrive
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, node: plugtest.Space(t, "node"), router: plugtest.Space(t, "router"), patience: patience}
	for _, l := range []struct {
		name string
		mac  net.HardwareAddr
	}{{"eth0", primaryMAC}, {"ens6", trunkMAC}} {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.HardwareAddr = l.name, l.mac
		v := netlink.NewVeth(attrs)
		v.PeerName, v.PeerNamespace = l.name, netlink.NsFd(w.router.NS)
		plugtest.Must(t, w.node.NL.LinkAdd(v))
		plugtest.Must(t, w.router.NL.LinkSetUp(plugtest.Link(t, w.router, l.name)))
	}
	return w
}

// plugger opens a Plugger without state of earlier ones.
func (w *world) plugger() plug.Plugger {
	w.t.Helper()
	vlans, err := vlan.New(vlan.Options{Netns: w.node.Path, Wait: time.Second})
	plugtest.Must(w.t, err)
	w.t.Cleanup(vlans.Close)
	p, err := New(Options{Netns: w.node.Path, VLANs: vlans, MarkShift: w.shift})
	plugtest.Must(w.t, err)
	w.t.Cleanup(p.Close)
	return p
}

// want is a port in the subnet of a VLAN.
func (w *world) want(vlan int, mode plug.Enforcing, attachment, portID string, pod *podif.Namespace) plug.Want {
	w.t.Helper()
	want := plugtest.Want(plug.RoutedVLAN, attachment, portID, pod, w.t)
	want.Bridge, want.Trunk, want.VLAN, want.Enforcing = "", trunkMAC.String(), vlan, mode
	want.Interface.MAC = macOf(vlan)
	want.Interface.Addresses, want.Interface.Gateways, want.Interface.Routes = nil, nil, nil
	for _, f := range w.families.Families() {
		gateway := gateway6
		if f == ipfamily.IPv4 {
			gateway = plans[f].pod(vlan, 1).Addr()
		}
		want.Interface.Addresses = append(want.Interface.Addresses, plans[f].pod(vlan, 12))
		want.Interface.Gateways = append(want.Interface.Gateways, gateway)
	}
	return want
}

// macOf is the MAC address of the port in a VLAN.
func macOf(vlan int) net.HardwareAddr {
	return net.HardwareAddr{0x0a, 0xff, 0xff, 0, 1, byte(vlan)}
}

// state describes what ports leave on the node: links, policy rules and nftables chains.
func (w *world) state() string {
	w.t.Helper()
	text := plugtest.Describe(w.t, w.node)
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		rules, err := w.node.NL.RuleList(family)
		plugtest.Must(w.t, err)
		for _, r := range rules {
			text += fmt.Sprintf("\nrule %d of family %d table %d %q", max(0, r.Priority), family, r.Table, r.IifName)
		}
	}
	for line := range strings.Lines(w.run(w.node, "nft", "list ruleset")) {
		if strings.Contains(line, "chain from_") || strings.Contains(line, "chain to_") || strings.Contains(line, "goto ") {
			text += "\n" + strings.TrimSpace(line)
		}
	}
	return text
}

// run executes a program in a namespace.
func (w *world) run(in *podif.Namespace, name, args string) (out string) {
	w.t.Helper()
	plugtest.Must(w.t, ns.Do(in.Path, func() error {
		b, err := exec.Command(name, strings.Fields(args)...).CombinedOutput()
		if out = string(b); err != nil {
			return fmt.Errorf("%s %s: %w: %s", name, args, err, b)
		}
		return nil
	}))
	return out
}

// live sets up the VPC for packets of both IP families, and the node's data path.
func (w *world) live(external bool, rp string) {
	t := w.t
	add := func(s *podif.Namespace, link string, cidr netip.Prefix) {
		t.Helper()
		l := plugtest.Link(t, s, link)
		plugtest.Must(t, s.NL.AddrAdd(l, &netlink.Addr{IPNet: rtnl.IPNet(cidr), Flags: unix.IFA_F_NODAD}))
		plugtest.Must(t, s.NL.LinkSetUp(l))
	}
	w.run(w.node, "sysctl", "-q -w net.ipv4.conf.all.rp_filter="+rp)
	w.run(w.router, "sysctl", "-q -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0")
	w.run(w.router, "nft", "add table inet vpc")
	w.run(w.router, "nft", "add chain inet vpc sources { type filter hook prerouting priority raw ; }")
	w.run(w.router, "nft", "add chain inet vpc groups { type filter hook forward priority filter ; }")
	w.run(w.router, "nft", "add chain inet vpc mine { type filter hook input priority filter ; }")
	w.run(w.router, "nft", "add rule inet vpc sources ip6 saddr { ::, fe80::/10 } icmpv6 type { nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert, mld2-listener-report } accept")
	for _, id := range []int{7, 8} {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.ParentIndex = fmt.Sprintf("v%d", id), plugtest.Link(t, w.router, "ens6").Attrs().Index
		plugtest.Must(t, w.router.NL.LinkAdd(&netlink.Vlan{LinkAttrs: attrs, VlanId: id, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q}))
		add(w.router, attrs.Name, netip.PrefixFrom(gateway6, 64))
	}
	for _, f := range ipfamily.Dual.Families() {
		p := plans[f]
		add(w.router, "eth0", p.router)
		add(w.router, "lo", rtnl.HostPrefix(p.outside))
		add(w.router, "lo", rtnl.HostPrefix(p.inVPC))
		add(w.node, "eth0", p.node)
		w.run(w.node, "ip", fmt.Sprintf("%s route add default via %s", p.ip, p.router.Addr()))
		w.run(w.router, "nft", fmt.Sprintf("add rule inet vpc sources iifname eth0 %s saddr != %s counter drop", p.nft, p.node.Addr()))
		for _, id := range []int{7, 8} {
			link := fmt.Sprintf("v%d", id)
			add(w.router, link, p.pod(id, 1))
			// A VPC knows the location of each address and sends no ARP requests.
			plugtest.Must(t, w.router.NL.NeighSet(rtnl.PermanentNeighbour(plugtest.Link(t, w.router, link).Attrs().Index, p.podAt(id), macOf(id))))
			w.run(w.router, "nft", fmt.Sprintf("add rule inet vpc sources iifname %s %s saddr != %s counter drop", link, p.nft, p.podAt(id)))
		}
	}
	dp, err := datapath.Open(w.node.Path)
	plugtest.Must(t, err)
	t.Cleanup(func() { plugtest.Must(t, dp.Close()) })
	plugtest.Must(t, dp.Setup(plugtest.Bounded(t), w.config(external)))
}

func (w *world) config(external bool) datapath.Config {
	return datapath.Config{BlockMetadata: true, Uplinks: datapath.VPC{
		PrimaryMAC: primaryMAC, PrimaryIPv4: plans[ipfamily.IPv4].node.Addr(), ExternalSNAT: external, MarkShift: w.shift,
		LocalCIDRs: slices.Concat(plans[ipfamily.IPv4].local, plans[ipfamily.IPv6].local),
	}}
}

// serve answers on port 80 of a namespace with the caller's source address.
func (w *world) serve(in *podif.Namespace) {
	w.t.Helper()
	l, err := ns.Listen(in.Path, netip.MustParseAddrPort("[::]:80"))
	plugtest.Must(w.t, err)
	w.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, c.RemoteAddr().(*net.TCPAddr).IP.String())
			_ = c.Close()
		}
	}()
}

// web is the address of such a server.
func web(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, 80) }

// nothing means that there was no answer.
const nothing = "nothing"

// ask returns the source address that a server sees, or nothing.
func (w *world) ask(from *podif.Namespace, to netip.AddrPort) string {
	w.t.Helper()
	return w.askFrom(from, netip.Addr{}, to)
}

// service translates one destination address to another on the node, as kube-proxy does.
func (w *world) service(p plan, from, to netip.AddrPort) {
	w.t.Helper()
	w.run(w.node, "nft", "add table "+p.nft+" services")
	w.run(w.node, "nft", "add chain "+p.nft+" services pre { type nat hook prerouting priority dstnat ; }")
	w.run(w.node, "nft", fmt.Sprintf("add rule %s services pre %s daddr %s tcp dport %d dnat to %s", p.nft, p.nft, from.Addr(), from.Port(), to))
}

// masquerade gives packets to an address the node's source address, as kube-proxy does for node
// ports.
func (w *world) masquerade(p plan, to netip.Addr) {
	w.t.Helper()
	w.run(w.node, "nft", "add chain "+p.nft+" services post { type nat hook postrouting priority srcnat ; }")
	w.run(w.node, "nft", fmt.Sprintf("add rule %s services post %s daddr %s masquerade", p.nft, p.nft, to))
}

// askFrom is ask with a source address.
func (w *world) askFrom(from *podif.Namespace, source netip.Addr, to netip.AddrPort) string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), w.patience)
	defer cancel()
	c, err := ns.Dial(ctx, from.Path, "tcp", to, source)
	if err != nil {
		return nothing
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(w.patience)); err != nil {
		return err.Error()
	}
	seen, err := io.ReadAll(c)
	if err != nil {
		return err.Error()
	}
	return string(seen)
}
