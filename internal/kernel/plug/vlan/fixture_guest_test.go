//go:build guest

package vlan

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/plugtest"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
	"github.com/berthnet/berth/internal/kernel/plug/tap"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// world is a node with a trunk, ens6, whose peer is a router of the VPC, and another link with a
// name like those of pods.
type world struct {
	t            *testing.T
	node, router *podif.Namespace
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, node: plugtest.Space(t, "node"), router: plugtest.Space(t, "router")}
	wire(t, w.node, w.router, "ens6", trunkMAC)
	wire(t, w.node, w.router, "eth0", net.HardwareAddr{0x0a, 0xff, 0xff, 0, 2, 1})
	return w
}

// plugger opens a Plugger without state of earlier ones.
func (w *world) plugger(o Options) plug.Plugger {
	w.t.Helper()
	p, err := tap.New(newPlugger(w.t, w.node, o), "")
	plugtest.Must(w.t, err)
	return p
}

// fixture is the world for the contract tests, with ports of one binding.
func (w *world) fixture(binding plug.Binding) plugtest.Fixture {
	return plugtest.Fixture{
		Plugger: func() plug.Plugger { return w.plugger(Options{}) },
		Want: func(attachment, portID string, pod *podif.Namespace) plug.Want {
			want := wantOn(w.t, 7, attachment, portID, pod)
			want.Binding, want.Tap = binding, plug.TapDevice{Owner: 107, Group: 107}
			return want
		},
		State: func() string { return plugtest.Describe(w.t, w.node) + "\n" + plugtest.Describe(w.t, w.router) },
	}
}

// subnet adds a VLAN at the router, with the router's addresses: the gateways of plugtest.Want in
// VLAN 7, and others in other VLANs.
func (w *world) subnet(vlan int) {
	w.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.ParentIndex = fmt.Sprintf("v%d", vlan), plugtest.Link(w.t, w.router, "ens6").Attrs().Index
	plugtest.Must(w.t, w.router.NL.LinkAdd(&netlink.Vlan{LinkAttrs: attrs, VlanId: vlan, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q}))
	l := plugtest.Link(w.t, w.router, attrs.Name)
	for _, p := range w.prefixes(vlan, 1) {
		plugtest.Must(w.t, w.router.NL.AddrAdd(l, &netlink.Addr{IPNet: rtnl.IPNet(p), Flags: unix.IFA_F_NODAD}))
	}
	plugtest.Must(w.t, w.router.NL.LinkSetUp(l))
}

// prefixes are the addresses of a host in a VLAN's subnet.
func (w *world) prefixes(vlan, host int) []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix(fmt.Sprintf("192.168.%d.%d/24", vlan-7, host)), netip.MustParsePrefix(fmt.Sprintf("2001:db8:%d::%d/64", vlan-6, host)),
	}
}

// want is a port in a VLAN's subnet.
func (w *world) want(vlan int, attachment, portID string, pod *podif.Namespace) plug.Want {
	want := wantOn(w.t, vlan, attachment, portID, pod)
	want.Interface.MAC = net.HardwareAddr{0x0a, 0xff, 0xff, 0, 1, byte(vlan)}
	want.Interface.Addresses, want.Interface.Gateways, want.Interface.Routes = w.prefixes(vlan, 12), nil, nil
	for _, p := range w.prefixes(vlan, 1) {
		want.Interface.Gateways = append(want.Interface.Gateways, p.Addr())
	}
	return want
}

// forward turns forwarding on at the router.
func (w *world) forward() {
	w.t.Helper()
	plugtest.Must(w.t, ns.Do(w.router.Path, func() error {
		return ns.SetSysctls(ns.Sysctl{Name: "net/ipv4/ip_forward", Value: "1"}, ns.Sysctl{Name: "net/ipv6/conf/all/forwarding", Value: "1"})
	}))
}

// vlans returns the VLAN IDs in a namespace by link name.
func vlans(t *testing.T, s *podif.Namespace) map[string]int {
	t.Helper()
	links, err := rtnl.Whole(s.NL.LinkList)
	plugtest.Must(t, err)
	there := map[string]int{}
	for _, l := range links {
		if v, ok := l.(*netlink.Vlan); ok {
			there[v.Name] = v.VlanId
		}
	}
	return there
}
