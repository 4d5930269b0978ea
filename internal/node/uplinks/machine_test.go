package uplinks

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/kernel/ns"
)

var spaceSeq atomic.Int32

// machine is a node with a real kernel: a namespace with a primary link.
type machine struct {
	t    *testing.T
	path string
	net  *netlink.Handle
	vpc  datapath.VPC
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	name := fmt.Sprintf("btc-%d-%d", os.Getpid(), spaceSeq.Add(1))
	if err := ns.Create(name); err != nil {
		t.Fatalf("this test creates network namespaces and needs root: %v", err)
	}
	t.Cleanup(func() { must(t, ns.Remove(name)) })
	m := &machine{t: t, path: ns.Path(name)}
	must(t, ns.Do(m.path, func() (err error) {
		m.net, err = netlink.NewHandle()
		return err
	}))
	t.Cleanup(m.net.Close)
	primary := m.addLink("ens5", 5)
	m.vpc = datapath.VPC{
		PrimaryMAC: primary, PrimaryIPv4: netip.MustParseAddr("10.0.0.4"),
		LocalCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")},
	}
	return m
}

// addLink creates a link that is up, with a MAC address that ends with a number.
func (m *machine) addLink(name string, number byte) net.HardwareAddr {
	m.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = name, 9001, net.HardwareAddr{2, 0, 0, 0, 0, number}
	v := netlink.NewVeth(attrs)
	v.PeerName, v.PeerMTU = "to-"+name, 9001
	must(m.t, m.net.LinkAdd(v))
	for _, end := range []string{"lo", name, v.PeerName} {
		l, err := m.net.LinkByName(end)
		must(m.t, err)
		must(m.t, m.net.LinkSetUp(l))
	}
	return attrs.HardwareAddr
}

// open opens the data path and closes it when the test ends.
func (m *machine) open() *datapath.Node {
	m.t.Helper()
	node, err := datapath.Open(m.path)
	must(m.t, err)
	m.t.Cleanup(func() { must(m.t, node.Close()) })
	return node
}

// must fails the test on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
