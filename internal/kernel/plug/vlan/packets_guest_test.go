//go:build guest

package vlan

import (
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/plugtest"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/lab/network/guest"
	"github.com/berthnet/berth/test/harness"
)

func TestContract(t *testing.T) {
	open := func(binding plug.Binding) func(t *testing.T) plugtest.Fixture {
		return func(t *testing.T) plugtest.Fixture { return newWorld(t).fixture(binding) }
	}
	t.Run("container", func(t *testing.T) {
		plugtest.Run(t, open(""), harness.Sample(t, 3, []string{"plug.vlan.trunk.", "plug.vlan.made.", "plug.vlan.mark.", "plug.vlan.name.", "plug.vlan.pod.", "plug.vlan.remove."})...)
	})
	t.Run("bridge", func(t *testing.T) { plugtest.Run(t, open(plug.BindingBridge), "plug.vlan.handover.") })
	t.Run("tap", func(t *testing.T) { plugtest.Run(t, open(plug.BindingTap), "plug.vlan.made.", "plug.tap.port.") })
}

// Pods reach each other through the VPC's router, each in its own VLAN. No packet of a pod or of a
// VLAN reaches the node's own network stack.
func TestPackets(t *testing.T) {
	w := newWorld(t)
	w.forward()
	var pods []*podif.Namespace
	var wants []plug.Want
	for n, vlan := range []int{7, 8} {
		w.subnet(vlan)
		pod := plugtest.Space(t, "pod")
		want := w.want(vlan, []string{plugtest.One, plugtest.Two}[n], []string{plugtest.PortA, plugtest.PortA2}[n], pod)
		want.Interface.MTU = 9001
		plugtest.Plugged(t, w.plugger(Options{}), want)
		pods, wants = append(pods, pod), append(wants, want)
	}
	for _, addr := range wants[1].Interface.Addresses {
		plugtest.Transfer(t, pods[0].Path, pods[1].Path, addr.Addr())
	}
	if trunk := plugtest.Link(t, w.node, "ens6").Attrs(); trunk.MTU != 9001 {
		t.Errorf("the trunk has MTU %d, want that of its VLANs", trunk.MTU)
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		addrs, err := w.node.NL.AddrList(plugtest.Link(t, w.node, "ens6"), family)
		plugtest.Must(t, err)
		if len(addrs) > 0 {
			t.Errorf("the node has %v by the trunk", addrs)
		}
	}
	w.nodeIsOutOfReach(pods[0], "eth0")
}

// nodeIsOutOfReach sends packets for an address of the node to the trunk's MAC address: from a pod,
// and from the router in the pod's VLAN and in an unused one. Only an untagged packet arrives.
func (w *world) nodeIsOutOfReach(pod *podif.Namespace, link string) {
	t := w.t
	address := netip.MustParseAddr("198.51.100.1")
	plugtest.Must(t, w.node.NL.AddrAdd(plugtest.Link(t, w.node, "lo"), &netlink.Addr{IPNet: rtnl.IPNet(rtnl.HostPrefix(address))}))
	server, err := ns.ListenPacket(w.node.Path, netip.AddrPortFrom(address, 7777))
	plugtest.Must(t, err)
	defer server.Close()
	w.subnet(9)
	own := plugtest.Link(t, w.router, "ens6")
	plugtest.Must(t, w.router.NL.AddrAdd(own, &netlink.Addr{IPNet: rtnl.IPNet(netip.MustParsePrefix("192.0.2.1/24"))}))
	send := func(from *podif.Namespace, name string) {
		t.Helper()
		index := plugtest.Link(t, from, name).Attrs().Index
		via := &netlink.Neigh{LinkIndex: index, IP: address.AsSlice(), State: netlink.NUD_PERMANENT, HardwareAddr: trunkMAC}
		for _, table := range []int{0, rtnl.SourceTable(index)} {
			plugtest.Must(t, from.NL.RouteReplace(&netlink.Route{LinkIndex: index, Table: table, Dst: rtnl.IPNet(rtnl.HostPrefix(address)), Scope: netlink.SCOPE_LINK}))
		}
		plugtest.Must(t, from.NL.NeighSet(via))
		c, err := ns.Dial(plugtest.Bounded(t), from.Path, "udp", netip.AddrPortFrom(address, 7777), netip.Addr{})
		plugtest.Must(t, err)
		defer c.Close()
		for range 3 {
			_, err = c.Write([]byte(name))
			plugtest.Must(t, err)
		}
	}
	buf := make([]byte, 100)
	send(pod, link)
	send(w.router, "v7")
	send(w.router, "v9")
	plugtest.Must(t, server.SetReadDeadline(time.Now().Add(300*time.Millisecond)))
	if n, from, err := server.ReadFrom(buf); err == nil {
		t.Errorf("the node got %q from %s", buf[:n], from)
	}
	send(w.router, "ens6")
	plugtest.Must(t, server.SetReadDeadline(time.Now().Add(time.Minute)))
	if n, _, err := server.ReadFrom(buf); err != nil || string(buf[:n]) != "ens6" {
		t.Errorf("what comes without a VLAN: %q, %v", buf[:n], err)
	}
}

// A machine uses the port with either binding. With a tap device, that also holds after its branch
// got another VLAN. Plug keeps the changes that a VM runtime made to the link.
func TestMachines(t *testing.T) {
	for _, binding := range []plug.Binding{plug.BindingTap, plug.BindingBridge} {
		t.Run(string(binding), func(t *testing.T) {
			w, pod := newWorld(t), plugtest.Space(t, "pod")
			w.subnet(7)
			want := w.want(7, plugtest.One, plugtest.PortA, pod)
			want.Binding, want.Tap.Owner = binding, 107
			plugtest.Plugged(t, w.plugger(Options{}), want)
			g, err := guest.Start(pod.Path, filepath.Base(pod.Path)+"-vm", []guest.NIC{{
				Name: "eth0", MAC: want.Interface.MAC, Addrs: want.Interface.Addresses, Gateways: want.Interface.Gateways,
			}})
			plugtest.Must(t, err)
			defer func() { plugtest.Must(t, g.Close()) }()
			taken := plugtest.Describe(t, pod)
			for range 2 {
				for _, p := range want.Interface.Addresses {
					plugtest.Transfer(t, w.router.Path, g.Netns(), p.Addr())
				}
				plugtest.Plugged(t, w.plugger(Options{}), want)
				if got := plugtest.Describe(t, pod); got != taken {
					t.Errorf("the pod has\n%s\nand had\n%s", got, taken)
				}
			}
			if binding == plug.BindingTap {
				plugtest.Must(t, w.router.NL.LinkDel(plugtest.Link(t, w.router, "v7")))
				w.another(want, g.Netns())
			}
		})
	}
}

// another moves a machine's port to VLAN 8, with the same addresses.
func (w *world) another(want plug.Want, machine string) {
	w.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.ParentIndex = "v8", plugtest.Link(w.t, w.router, "ens6").Attrs().Index
	attrs.HardwareAddr = net.HardwareAddr{2, 0, 0, 0, 0, 8}
	plugtest.Must(w.t, w.router.NL.LinkAdd(&netlink.Vlan{LinkAttrs: attrs, VlanId: 8, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q}))
	l := plugtest.Link(w.t, w.router, "v8")
	plugtest.Must(w.t, w.router.NL.AddrAdd(l, &netlink.Addr{IPNet: rtnl.IPNet(w.prefixes(7, 1)[0])}))
	plugtest.Must(w.t, w.router.NL.LinkSetUp(l))
	want.VLAN = 8
	plugtest.Plugged(w.t, w.plugger(Options{}), want)
	plugtest.Must(w.t, ns.Netlink(machine, func(h *netlink.Handle) error { // which knew the router by VLAN 7
		eth0, err := h.LinkByName("eth0")
		if err != nil {
			return err
		}
		return h.NeighSet(&netlink.Neigh{LinkIndex: eth0.Attrs().Index, IP: w.prefixes(7, 1)[0].Addr().AsSlice(), State: netlink.NUD_PERMANENT, HardwareAddr: attrs.HardwareAddr})
	}))
	plugtest.Transfer(w.t, w.router.Path, machine, want.Interface.Addresses[0].Addr())
}
