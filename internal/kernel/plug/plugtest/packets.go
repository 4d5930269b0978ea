package plugtest

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/podif"
	"github.com/berthnet/berth/internal/kernel/rtnl"
)

// Packets plugs two pods into a real Open vSwitch and tests their connections, and then does the
// same with a real OVN.
func Packets(t *testing.T, kind plug.Kind, open func(node *podif.Namespace, s *Server) plug.Plugger) {
	t.Run("OpenVSwitch", func(t *testing.T) {
		node := Space(t, "node")
		server := NewOpenVSwitch(t, node)
		packets(t, kind, node, server, nil, open(node, server))
	})
	t.Run("OVN", func(t *testing.T) {
		node := Space(t, "node")
		ovn := NewOVN(t, node)
		packets(t, kind, node, ovn.Server, ovn, open(node, ovn.Server))
	})
}

func packets(t *testing.T, kind plug.Kind, node *podif.Namespace, server *Server, ovn *OVN, p plug.Plugger) {
	ctx := Bounded(t)
	before := Describe(t, node)
	var wants []plug.Want
	var pods []*podif.Namespace
	for n, id := range []string{PortA, PortB} {
		pod := Space(t, "pod")
		w := Want(kind, []string{One, Two}[n], id, pod, t)
		w.Interface.MAC = net.HardwareAddr{0xfa, 0x16, 0x3e, 1, 2, byte(10 + n)}
		w.Interface.Addresses = []netip.Prefix{
			netip.MustParsePrefix(fmt.Sprintf("192.168.0.%d/24", 10+n)), netip.MustParsePrefix(fmt.Sprintf("2001:db8:1::%d/64", 10+n)),
		}
		w.OVN = ovn != nil
		if ovn != nil { // a port is bound before it is plugged
			ovn.AddPort(w)
		}
		Plugged(t, p, w)
		Must(t, p.Await(ctx, w))
		Must(t, p.Check(ctx, w))
		wants, pods = append(wants, w), append(pods, pod)
	}
	for _, addr := range wants[1].Interface.Addresses {
		Transfer(t, pods[0].Path, pods[1].Path, addr.Addr())
	}
	nodeIsOutOfReach(t, node, pods[0], wants[0])
	list, err := p.List(ctx)
	Must(t, err)
	if len(list) != 2 || list[0].PortID != PortA || list[1].PortID != PortB || list[1].Attachment != Two {
		t.Errorf("List: %+v", list)
	}
	for _, w := range wants {
		Must(t, p.Unplug(ctx, w.Ref))
	}
	if got := server.Interfaces(); len(got) != 0 {
		t.Errorf("left in OVSDB: %v", got)
	}
	if after := Describe(t, node); after != before {
		t.Errorf("left on the node:\n%s\nbefore:\n%s", after, before)
	}
}

// Transfer sends more than one packet by TCP to the namespace at path from, from an address in the
// namespace at path to. Missing checksums would make it fail.
func Transfer(t *testing.T, from, to string, addr netip.Addr) {
	t.Helper()
	l, err := ns.Listen(to, netip.AddrPortFrom(addr, 0))
	Must(t, err)
	defer l.Close()
	text := strings.Repeat("0123456789", 10_000)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(c, text)
		_ = c.Close()
	}()
	c, err := ns.Dial(Bounded(t), from, "tcp", l.Addr().(*net.TCPAddr).AddrPort(), netip.Addr{})
	if err != nil {
		t.Errorf("to %s: %v", addr, err)
		return
	}
	defer c.Close()
	if end, ok := Bounded(t).Deadline(); ok {
		Must(t, c.SetDeadline(end))
	}
	got, err := io.ReadAll(c)
	if err != nil || string(got) != text {
		t.Errorf("from %s: %d bytes, %v", addr, len(got), err)
	}
}

// nodeIsOutOfReach sends packets from a pod to an address of the node, with the MAC address of each
// link of the pod's port on the node.
func nodeIsOutOfReach(t *testing.T, node, pod *podif.Namespace, w plug.Want) {
	t.Helper()
	lo, err := node.NL.LinkByName("lo")
	Must(t, err)
	address := netip.MustParseAddr("198.51.100.1")
	Must(t, node.NL.AddrAdd(lo, &netlink.Addr{IPNet: rtnl.IPNet(rtnl.HostPrefix(address))}))
	server, err := ns.ListenPacket(node.Path, netip.AddrPortFrom(address, 7777))
	Must(t, err)
	defer server.Close()
	l, err := pod.NL.LinkByName(w.Pod.IfName)
	Must(t, err)
	links, err := rtnl.Whole(node.NL.LinkList)
	Must(t, err)
	own := 0
	for _, host := range links {
		if !strings.HasSuffix(host.Attrs().Name, w.Short()) {
			continue
		}
		own++
		via := netip.MustParseAddr("192.168.0.99")
		Must(t, pod.NL.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: via.AsSlice(), State: netlink.NUD_PERMANENT, HardwareAddr: host.Attrs().HardwareAddr}))
		Must(t, pod.NL.RouteReplace(&netlink.Route{LinkIndex: l.Attrs().Index, Table: rtnl.SourceTable(l.Attrs().Index), Dst: rtnl.IPNet(rtnl.HostPrefix(address)), Gw: via.AsSlice()}))
		c, err := ns.Dial(Bounded(t), pod.Path, "udp", netip.AddrPortFrom(address, 7777), w.Interface.Addresses[0].Addr())
		Must(t, err)
		for range 3 {
			_, err = c.Write([]byte("to the node"))
			Must(t, err)
		}
		_ = c.Close()
	}
	if own == 0 {
		t.Error("the port has no link on the node")
	}
	Must(t, server.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
	if n, from, err := server.ReadFrom(make([]byte, 100)); err == nil {
		t.Errorf("the node got %d bytes from %s, a pod of the VPC", n, from)
	}
	Must(t, node.NL.AddrDel(lo, &netlink.Addr{IPNet: rtnl.IPNet(rtnl.HostPrefix(address))}))
}
