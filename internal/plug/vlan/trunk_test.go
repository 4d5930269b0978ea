package vlan

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/datapath/rtnl"
	"github.com/berthnet/berth/internal/plug"
	"github.com/berthnet/berth/internal/plug/plugtest"
)

// A trunk's link comes after EC2 said that it is attached: it is waited for, and no longer than
// told.
func TestWaitsForTheTrunk(t *testing.T) {
	b := newBed(t)
	late := net.HardwareAddr{2, 0, 0, 0, 0, 6}
	w := b.want(plugtest.One, branchID, plugtest.Space(t, "pod"))
	w.Trunk = late.String()
	short := b.plugger(Options{Wait: time.Millisecond})
	if err := short.Expect(t.Context(), w); !errors.Is(err, plug.ErrNotReady) || !strings.Contains(err.Error(), w.Trunk) {
		t.Errorf("a link that does not come: %v", err)
	}
	came := make(chan error, 1)
	p := b.plugger(Options{Wait: time.Minute})
	go func() { came <- p.Expect(plugtest.Bounded(t), w) }()
	select {
	case err := <-came:
		t.Fatalf("not waited for: %v", err)
	case <-time.After(2 * pollTrunk):
	}
	b.link("ens7", late)
	plugtest.Must(t, <-came)
}

// Whatever a PodNIC says, no link of a pod is a trunk, nor one that is made of others, nor one of
// several.
func TestLinksThatAreNoTrunks(t *testing.T) {
	b := newBed(t)
	p, pod := b.plugger(Options{}), plugtest.Space(t, "pod")
	add := func(name string, mac byte, edit func(netlink.LinkAttrs) netlink.Link) string {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.HardwareAddr = name, net.HardwareAddr{2, 0, 0, 0, 1, mac}
		plugtest.Must(t, b.node.NL.LinkAdd(edit(attrs)))
		return attrs.HardwareAddr.String()
	}
	join := func(name, bridge string) {
		plugtest.Must(t, b.node.NL.LinkSetMaster(plugtest.Link(t, b.node, name), plugtest.Link(t, b.node, bridge)))
	}
	veth := func(a netlink.LinkAttrs) netlink.Link {
		v := netlink.NewVeth(a)
		v.PeerName = "x" + a.Name[1:]
		return v
	}
	for name, mac := range map[string]string{
		"a pod's":         add(rtnl.PodLinkPrefix+"aaaaaaaaaaaa", 1, veth),
		"a port's":        add("tap0a1b2c3d-4e", 2, func(a netlink.LinkAttrs) netlink.Link { a.Group = plug.LinkGroup; return veth(a) }),
		"a bridge's":      add("br0", 3, func(a netlink.LinkAttrs) netlink.Link { return &netlink.Bridge{LinkAttrs: a} }),
		"nobody's":        "02:00:00:00:09:09",
		"of two links":    func() string { add("ens8", 4, veth); return add("ens9", 4, veth) }(),
		"a bridge port's": func() string { mac := add("ens10", 5, veth); join("ens10", "br0"); return mac }(),
	} {
		w := b.want(plugtest.One, branchID, pod)
		w.Trunk = mac
		want := plug.ErrNotReady
		if name == "of two links" {
			want = plug.ErrInvalid
		}
		if _, err := p.Plug(t.Context(), w); !errors.Is(err, want) || !strings.Contains(err.Error(), mac) {
			t.Errorf("%s: %v, want %v with %s", name, err, want, mac)
		}
	}
	if left := plugtest.Links(t, pod); len(left) != 0 {
		t.Errorf("made in the pod: %v", left)
	}
}
