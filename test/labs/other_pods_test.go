package labs

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/kernel/ns/nstest"
	"github.com/berthnet/berth/internal/kernel/rtnl"
	"github.com/berthnet/berth/internal/node/foreign"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// TestPodsOfAnotherNetworkKeepTheirAddresses has another daemon's pods on secondary addresses of a node's primary ENI, as
// before a node is moved to Berth: known by a route, by the checkpoint of the Amazon VPC CNI, or by both. No pod of Berth
// gets these addresses, and EC2 keeps them, while that daemon's pods run, across crashes of berthd. Then they become available.
func TestPodsOfAnotherNetworkKeepTheirAddresses(t *testing.T) {
	t.Parallel()
	const room, onPrimary = 9, 3 // of a t3.small
	l := harness.RaiseQuick(t, lab.NodeMode, lab.Options{
		Nodes: 1, InstanceType: "t3.small", IPFamilies: ipfamily.OnlyIPv4, // as the checkpoint's pods
		DaemonArgs: slices.Concat(prompt, []string{"--minimum-ip-target=3", "--warm-ip-target=1", "--shrink-delay=1s", "--warm-wait=5s"}),
	})
	n := l.Nodes()[0]
	primary := harness.ENIs(l, n)[0]
	var held []netip.Addr
	harness.Shows(t, n, "addresses of the primary ENI are available", func(doc introspect.Document) error {
		held = nil
		for _, a := range doc.Available {
			if a.ENI == primary.ID {
				held = append(held, a.Address)
			}
		}
		return harness.Equal("available addresses of the primary ENI", len(held), onPrimary)
	})
	harness.OK(t, n.Kill())
	routed := otherPod(t, n, "eni0d7763386da", held[0])
	remember(t, n, held[1:]...)
	remembered := otherPod(t, n, "enib6dc6eb2c1a", held[1])
	harness.OK(t, n.Start())
	harness.Ready(t, n)

	keeps := func(when string, addrs ...netip.Addr) {
		t.Helper()
		for i := range room {
			if harness.AddOnce(t, n, fmt.Sprint("p", i)) != nil {
				break // there is no other address
			}
			p, err := n.Pod(fmt.Sprint("p", i))
			harness.OK(t, err)
			if slices.ContainsFunc(p.Addrs, func(a netip.Addr) bool { return slices.Contains(addrs, a) }) {
				t.Errorf("%s: pod %s got %v, of which another network's pods have %v", when, p.Name, p.Addrs, addrs)
			}
		}
		harness.RemoveAll(t, n)
	}
	keeps("at the start", held...)
	if c := condition(t, n, "AddressesExclusive", introspect.False); c.Reason != "HeldByOthers" || !strings.Contains(c.Message, held[2].String()+" (Amazon VPC CNI, pod default/web-1)") {
		t.Errorf("condition = %+v", c)
	}
	if c := condition(t, n, "SoleCNIPlugin", introspect.False); c.Reason != foreign.ReasonTwo || !strings.Contains(c.Message, "Amazon VPC CNI still holds 3 addresses") {
		t.Errorf("condition = %+v", c)
	}
	// Berth releases what it has too much of, and not these.
	harness.Eventually(t, patience, "spare addresses are released", func() error {
		have := harness.ENIs(l, n)
		for _, a := range held {
			if !have[0].Owns(a) {
				t.Fatalf("%s, which another network's pod has, was released", a)
			}
		}
		return harness.Equal("ENIs", len(have), 2) // one for the free address
	})
	harness.Restart(t, n)
	keeps("after a crash", held...)

	// The other network's pods end: one loses its link, and the daemon forgets the others.
	routed()
	remembered()
	remember(t, n)
	condition(t, n, "AddressesExclusive", introspect.True)
	condition(t, n, "SoleCNIPlugin", introspect.True)
	var got []netip.Addr
	for i := range room {
		got = append(got, harness.Add(t, n, fmt.Sprint("p", i)).Addrs...)
	}
	for _, a := range held {
		if have := harness.ENIs(l, n)[0]; have.Owns(a) && !slices.Contains(got, a) {
			t.Errorf("%s stays unused: pods have %v", a, got)
		}
	}
	harness.RemoveAll(t, n)
	harness.Settle(t, l)
}

// otherPod makes a pod of another network on a node, with a route in the main table. end removes its link.
func otherPod(t *testing.T, n *node.Node, link string, addr netip.Addr) (end func()) {
	t.Helper()
	path := nstest.New(t, nstest.Unique("other"))
	pod, err := netns.GetFromPath(path)
	harness.OK(t, err)
	defer func() { _ = pod.Close() }()
	harness.OK(t, ns.Do(n.Netns, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = link
		v := netlink.NewVeth(attrs)
		v.PeerName, v.PeerNamespace = "eth0", netlink.NsFd(pod)
		if err := netlink.LinkAdd(v); err != nil {
			return err
		}
		host, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(host); err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: host.Attrs().Index, Dst: rtnl.IPNet(rtnl.HostPrefix(addr)), Scope: netlink.SCOPE_LINK})
	}))
	return func() {
		harness.OK(t, ns.Do(n.Netns, func() error {
			host, err := netlink.LinkByName(link)
			if err != nil {
				return err
			}
			return netlink.LinkDel(host)
		}))
	}
}

// remember writes the checkpoint of the Amazon VPC CNI.
func remember(t *testing.T, n *node.Node, addrs ...netip.Addr) {
	t.Helper()
	var list []string
	for i, a := range addrs {
		list = append(list, fmt.Sprintf(`{"networkName":"aws-cni","containerID":"c%d","ifName":"eth0","ipv4":"%s","allocationTimestamp":%d,`+
			`"metadata":{"k8sPodNamespace":"default","k8sPodName":"web-%d"}}`, i, a, time.Now().UnixNano(), i))
	}
	file := filepath.Join(n.AWSNodeDir(), foreign.CheckpointName)
	harness.OK(t, os.MkdirAll(n.AWSNodeDir(), 0o755))
	harness.OK(t, os.WriteFile(file+".tmp", []byte(`{"version":"`+foreign.CheckpointVersion+`","allocations":[`+strings.Join(list, ",")+`]}`), 0o600))
	harness.OK(t, os.Rename(file+".tmp", file))
}
