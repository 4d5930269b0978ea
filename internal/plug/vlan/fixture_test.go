package vlan

import (
	"net"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/plug"
	"github.com/berthnet/berth/internal/plug/plugtest"
	"github.com/berthnet/berth/internal/plug/podif"
)

var trunkMAC = net.HardwareAddr{2, 0, 0, 0, 0, 5}

const branchID = "eni-0a1b2c3d4e5f67890"

// bed is a node with a trunk, ens6, and the VPC at its other end.
type bed struct {
	t         testing.TB
	node, vpc *podif.Namespace
}

func newBed(t testing.TB) *bed {
	t.Helper()
	b := &bed{t, plugtest.Space(t, "node"), plugtest.Space(t, "vpc")}
	b.link("ens6", trunkMAC)
	return b
}

// link plugs an ENI into the node.
func (b *bed) link(name string, mac net.HardwareAddr) {
	b.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr, attrs.MTU = name, mac, 9001
	v := netlink.NewVeth(attrs)
	v.PeerName, v.PeerMTU, v.PeerNamespace = name, 9001, netlink.NsFd(b.vpc.NS)
	plugtest.Must(b.t, b.node.NL.LinkAdd(v))
	plugtest.Must(b.t, b.vpc.NL.LinkSetUp(plugtest.Link(b.t, b.vpc, name)))
}

func (b *bed) plugger(o Options) *Plugger {
	b.t.Helper()
	o.Netns = b.node.Path
	p, err := New(o)
	plugtest.Must(b.t, err)
	b.t.Cleanup(p.Close)
	return p
}

func (b *bed) want(attachment, port string, pod *podif.Namespace) plug.Want {
	b.t.Helper()
	w := plugtest.Want(plug.VLAN, attachment, port, pod, b.t)
	w.Bridge, w.Trunk, w.VLAN = "", trunkMAC.String(), 17
	return w
}
