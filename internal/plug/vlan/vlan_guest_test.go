//go:build guest

package vlan

import (
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/datapath/rtnl"
	"github.com/berthnet/berth/internal/lab/network/ns"
	"github.com/berthnet/berth/internal/plug"
	"github.com/berthnet/berth/internal/plug/plugtest"
	"github.com/berthnet/berth/internal/plug/podif"
	"github.com/berthnet/berth/internal/plug/tap"
)

func (b *bed) fixture(open func() plug.Plugger, edit func(*plug.Want)) plugtest.Fixture {
	return plugtest.Fixture{
		Plugger: open,
		Want: func(attachment, port string, pod *podif.Namespace) plug.Want {
			w := b.want(attachment, port, pod)
			edit(&w)
			return w
		},
		State: func() string { return plugtest.Describe(b.t, b.node) + "\n" + plugtest.Describe(b.t, b.vpc) },
		Keeps: true, // of another port with the same VLAN TestVLANInUse tells
	}
}

func TestContract(t *testing.T) {
	plugtest.Run(t, func(t *testing.T) plugtest.Fixture {
		b := newBed(t)
		return b.fixture(func() plug.Plugger { return b.plugger(Options{}) }, func(*plug.Want) {})
	}, "plug.vlan.")
}

// The same for ports of machines.
func TestContractOfMachines(t *testing.T) {
	plugtest.Run(t, func(t *testing.T) plugtest.Fixture {
		b := newBed(t)
		return b.fixture(func() plug.Plugger { return b.plugger(Options{}) }, func(w *plug.Want) { w.Binding = plug.BindingBridge })
	})
	plugtest.Run(t, func(t *testing.T) plugtest.Fixture {
		b := newBed(t)
		return b.fixture(func() plug.Plugger {
			p, err := tap.New(b.plugger(Options{}), "")
			plugtest.Must(t, err)
			return p
		}, func(w *plug.Want) { w.Binding = plug.BindingTap })
	})
}

// branch is the VPC's end of a VLAN: its router there.
func (b *bed) branch(vlan int, addrs ...string) {
	b.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.ParentIndex = "branch", plugtest.Link(b.t, b.vpc, "ens6").Attrs().Index
	plugtest.Must(b.t, b.vpc.NL.LinkAdd(&netlink.Vlan{LinkAttrs: attrs, VlanId: vlan, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q}))
	l := plugtest.Link(b.t, b.vpc, "branch")
	for _, a := range addrs {
		p := netip.MustParsePrefix(a)
		addr := &netlink.Addr{IPNet: rtnl.IPNet(p)}
		if p.Addr().Is6() {
			addr.Flags = 2 // IFA_F_NODAD
		}
		plugtest.Must(b.t, b.vpc.NL.AddrAdd(l, addr))
	}
	plugtest.Must(b.t, b.vpc.NL.LinkSetUp(l))
}

// A pod's packets go by its VLAN to the VPC and back, and by no other; the node has no part in it.
func TestPackets(t *testing.T) {
	b := newBed(t)
	b.branch(17, "192.168.0.1/24", "2001:db8:1::1/64")
	pod, p := plugtest.Space(t, "pod"), b.plugger(Options{})
	w := b.want(plugtest.One, branchID, pod)
	d, err := p.Plug(t.Context(), w)
	plugtest.Must(t, err)
	if d.MTU != 1442 || d.HostIfName != "" {
		t.Errorf("Plug: %+v", d)
	}
	for _, to := range []string{"192.168.0.1", "2001:db8:1::1"} {
		plugtest.Transfer(t, pod, b.vpc, netip.MustParseAddr(to))
	}
	for _, a := range w.Interface.Addresses {
		plugtest.Transfer(t, b.vpc, pod, a.Addr())
	}
	if v, ok := plugtest.Link(t, pod, "eth0").(*netlink.Vlan); !ok || v.VlanId != 17 || v.HardwareAddr.String() != w.Interface.MAC.String() {
		t.Errorf("the pod has %+v", plugtest.Link(t, pod, "eth0"))
	}
	if left := plugtest.Links(t, b.node); len(left) != 1 {
		t.Errorf("on the node are %v, want the trunk alone", left)
	}
}

// A port that is associated anew has another VLAN: the pod follows.
func TestAnotherVLAN(t *testing.T) {
	b := newBed(t)
	b.branch(18, "192.168.0.1/24")
	pod, p := plugtest.Space(t, "pod"), b.plugger(Options{})
	w := b.want(plugtest.One, branchID, pod)
	_, err := p.Plug(t.Context(), w)
	plugtest.Must(t, err)
	w.VLAN = 18
	var m *plug.Mismatch
	if err := p.Check(t.Context(), w); !errors.As(err, &m) || m.Differences[0] != "eth0 has VLAN 17, not 18" {
		t.Errorf("Check: %v", err)
	}
	_, err = p.Plug(t.Context(), w)
	plugtest.Must(t, err)
	plugtest.Must(t, p.Check(t.Context(), w))
	plugtest.Transfer(t, pod, b.vpc, netip.MustParseAddr("192.168.0.1"))

	other := net.HardwareAddr{2, 0, 0, 0, 0, 7}
	b.link("ens7", other)
	w.Trunk = other.String()
	_, err = p.Plug(t.Context(), w)
	plugtest.Must(t, err)
	plugtest.Must(t, p.Check(t.Context(), w))
	plugtest.Must(t, p.Unplug(t.Context(), w.Ref))
}

// A VLAN is one pod's. It is free once the pod is gone, or it was unplugged there.
func TestVLANInUse(t *testing.T) {
	b := newBed(t)
	p, first, second := b.plugger(Options{}), plugtest.Space(t, "first"), plugtest.Space(t, "second")
	w, o := b.want(plugtest.One, branchID, first), b.want(plugtest.Two, "eni-0a1b2c3d4e5f67891", second)
	_, err := p.Plug(t.Context(), w)
	plugtest.Must(t, err)
	if _, err := p.Plug(t.Context(), o); !errors.Is(err, plug.ErrPortInUse) {
		t.Errorf("a VLAN that another pod has: %v", err)
	}
	plugtest.Must(t, p.Unplug(t.Context(), o.Ref))
	plugtest.Must(t, p.Check(t.Context(), w))
	first.Close() // which would keep the namespace
	plugtest.Must(t, ns.Remove(filepath.Base(first.Path)))
	plugtest.Within(t, "the VLAN is free", func() bool {
		_, err := p.Plug(t.Context(), o)
		return err == nil
	})
}
