//go:build guest

package routedvlan

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/datapath"
	"github.com/berthnet/berth/internal/datapath/rtnl"
	"github.com/berthnet/berth/internal/lab/network/ns"
	"github.com/berthnet/berth/internal/plug"
	"github.com/berthnet/berth/internal/plug/plugtest"
	"github.com/berthnet/berth/internal/plug/podif"
	"github.com/berthnet/berth/internal/plug/vlan"
)

var (
	primaryMAC = net.HardwareAddr{0x0a, 0xff, 0xff, 0, 2, 1}
	trunkMAC   = net.HardwareAddr{0x0a, 0xff, 0xff, 0, 0, 1}
	nodeAddr   = netip.MustParseAddr("10.0.0.10")
	outside    = netip.MustParseAddr("203.0.113.1") // beyond the VPC
	inVPC      = netip.MustParseAddr("10.0.9.9")    // another machine of the VPC
)

// world is a node with its data path, a primary ENI and a trunk, and the VPC's router, which also is
// every machine elsewhere. As a VPC does it drops what has another source than that of where it
// came from.
type world struct {
	t            *testing.T
	node, router *podif.Namespace
	shift        uint
	patience     time.Duration // with an answer that may not come
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, node: plugtest.Space(t, "node"), router: plugtest.Space(t, "router"), patience: 5 * time.Second}
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

// plugger opens one that knows nothing of what another did.
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

// want is a port in a VLAN, of the subnet 192.168.N.0/24, N counting from VLAN 7.
func (w *world) want(vlan int, mode plug.Enforcing, attachment, portID string, pod *podif.Namespace) plug.Want {
	w.t.Helper()
	want := plugtest.Want(plug.RoutedVLAN, attachment, portID, pod, w.t)
	want.Bridge, want.Trunk, want.VLAN, want.Enforcing = "", trunkMAC.String(), vlan, mode
	want.Interface.MAC = net.HardwareAddr{0x0a, 0xff, 0xff, 0, 1, byte(vlan)}
	want.Interface.Addresses = []netip.Prefix{netip.PrefixFrom(w.addr(vlan, 12), 24)}
	want.Interface.Gateways, want.Interface.Routes = []netip.Addr{w.addr(vlan, 1)}, nil
	return want
}

func (w *world) addr(vlan, host int) netip.Addr {
	return netip.AddrFrom4([4]byte{192, 168, byte(vlan - 7), byte(host)})
}

// state is what ports leave on the node: links, policy rules, and nftables chains.
func (w *world) state() string {
	w.t.Helper()
	rules, err := w.node.NL.RuleList(unix.AF_INET)
	plugtest.Must(w.t, err)
	text := plugtest.Describe(w.t, w.node)
	for _, r := range rules {
		text += fmt.Sprintf("\nrule %d table %d %q", max(0, r.Priority), r.Table, r.IifName)
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

// live makes the VPC carry packets, and sets the node's data path up.
func (w *world) live(external bool, rp string) {
	t := w.t
	add := func(s *podif.Namespace, link, cidr string) {
		t.Helper()
		l := plugtest.Link(t, s, link)
		plugtest.Must(t, s.NL.AddrAdd(l, &netlink.Addr{IPNet: rtnl.IPNet(netip.MustParsePrefix(cidr))}))
		plugtest.Must(t, s.NL.LinkSetUp(l))
	}
	add(w.router, "eth0", "10.0.0.1/24")
	add(w.router, "lo", outside.String()+"/32")
	add(w.router, "lo", inVPC.String()+"/32")
	add(w.node, "eth0", nodeAddr.String()+"/24")
	w.run(w.node, "ip", "route add default via 10.0.0.1")
	w.run(w.node, "sysctl", "-q -w net.ipv4.conf.all.rp_filter="+rp)
	w.run(w.router, "sysctl", "-q -w net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0")
	w.run(w.router, "nft", "add table inet vpc")
	w.run(w.router, "nft", "add chain inet vpc sources { type filter hook prerouting priority raw ; }")
	w.run(w.router, "nft", "add chain inet vpc groups { type filter hook forward priority filter ; }")
	w.run(w.router, "nft", "add chain inet vpc mine { type filter hook input priority filter ; }")
	w.run(w.router, "nft", "add rule inet vpc sources iifname eth0 ip saddr != "+nodeAddr.String()+" counter drop")
	for _, id := range []int{7, 8} {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.ParentIndex = fmt.Sprintf("v%d", id), plugtest.Link(t, w.router, "ens6").Attrs().Index
		plugtest.Must(t, w.router.NL.LinkAdd(&netlink.Vlan{LinkAttrs: attrs, VlanId: id, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q}))
		add(w.router, attrs.Name, w.addr(id, 1).String()+"/24")
		// A VPC knows where an address is, and asks nobody.
		plugtest.Must(t, w.router.NL.NeighSet(neighbour(plugtest.Link(t, w.router, attrs.Name).Attrs().Index, w.addr(id, 12), net.HardwareAddr{0x0a, 0xff, 0xff, 0, 1, byte(id)})))
		w.run(w.router, "nft", fmt.Sprintf("add rule inet vpc sources iifname v%d ip saddr != %s counter drop", id, w.addr(id, 12)))
	}
	dp, err := datapath.Open(w.node.Path)
	plugtest.Must(t, err)
	t.Cleanup(func() { plugtest.Must(t, dp.Close()) })
	plugtest.Must(t, dp.Setup(plugtest.Bounded(t), w.config(external)))
}

func (w *world) config(external bool) datapath.Config {
	return datapath.Config{BlockMetadata: true, Uplinks: datapath.VPC{
		PrimaryMAC: primaryMAC, PrimaryIPv4: nodeAddr, ExternalSNAT: external, MarkShift: w.shift,
		LocalCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("192.168.0.0/16")},
	}}
}

// serve answers on port 80 of a namespace with the address that a caller is seen as.
func (w *world) serve(in *podif.Namespace) {
	w.t.Helper()
	l, err := ns.Listen(in.Path, netip.MustParseAddrPort("0.0.0.0:80"))
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

// ask tells as what a caller is seen at an address, or "nothing" if it gets no answer.
func (w *world) ask(from *podif.Namespace, to string) string {
	w.t.Helper()
	return w.askFrom(from, "", to)
}

// service sends what is for one address to another on the node, as kube-proxy does.
func (w *world) service(from, to string) {
	w.t.Helper()
	addr, port, _ := strings.Cut(from, ":")
	w.run(w.node, "nft", "add table ip services")
	w.run(w.node, "nft", "add chain ip services pre { type nat hook prerouting priority dstnat ; }")
	w.run(w.node, "nft", fmt.Sprintf("add rule ip services pre ip daddr %s tcp dport %s dnat to %s", addr, port, to))
}

// masquerade gives what goes to an address the node's, as kube-proxy does with what comes to node ports.
func (w *world) masquerade(to netip.Addr) {
	w.t.Helper()
	w.run(w.node, "nft", "add chain ip services post { type nat hook postrouting priority srcnat ; }")
	w.run(w.node, "nft", fmt.Sprintf("add rule ip services post ip daddr %s masquerade", to))
}

// askFrom is ask with a source.
func (w *world) askFrom(from *podif.Namespace, source, to string) string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), w.patience)
	defer cancel()
	if !strings.Contains(to, ":") {
		to += ":80"
	}
	var local netip.Addr
	if source != "" {
		local = netip.MustParseAddr(source)
	}
	c, err := ns.Dial(ctx, from.Path, "tcp", netip.MustParseAddrPort(to), local)
	if err != nil {
		return "nothing"
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
