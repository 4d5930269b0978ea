package labs

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/network/dnscache"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/network/fabric"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// TestDualStackAndIPv6OnlyPods runs dual-stack, IPv6-only and, for comparison, IPv4-only pods, more
// than one ENI has IPv4 addresses for. Each pod has one address of each family, all on one ENI. It
// reaches pods of its node and of another, nodes and the internet in each family, seen with the node's
// IPv4 address and its own IPv6 address. It reaches neither the metadata service nor is it reached
// from outside. Destinations of a family that it has no address of it reaches as its node, without an
// entry in the CNI result; IPv4-only pods need a setting for that. Released addresses cool.
func TestDualStackAndIPv6OnlyPods(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		mode     lab.Mode
		families ipfamily.Set
		egress   bool  // of IPv6, by the node
		slices   []int // nil: every gate
	}{
		{lab.NodeMode, ipfamily.OnlyIPv4, true, []int{9}},
		{lab.NodeMode, ipfamily.Dual, false, nil},
		{lab.NodeMode, ipfamily.OnlyIPv6, false, nil},
		{lab.OperatorMode, ipfamily.OnlyIPv4, true, []int{1}},
		{lab.OperatorMode, ipfamily.Dual, false, nil},
		{lab.OperatorMode, ipfamily.OnlyIPv6, false, []int{4}},
	} {
		t.Run(fmt.Sprintf("%s/%s/egress=%t", tc.mode, tc.families, tc.egress), func(t *testing.T) {
			t.Parallel()
			if tc.slices != nil {
				harness.Rotate(t, tc.slices...)
			}
			families := tc.families
			l := harness.RaiseQuick(t, tc.mode, lab.Options{
				Nodes: 2, InstanceType: "t3.small", IPFamilies: families, IPv6Egress: tc.egress, DaemonArgs: []string{"--cooling-period=10m"},
			})
			nodes := l.Nodes()
			const many, few = 5, 2
			harness.OK(t, harness.AddMany(t, nodes[0], "pod", many, node.PodOptions{}))
			harness.OK(t, harness.AddMany(t, nodes[1], "pod", few, node.PodOptions{}))
			for _, n := range nodes {
				for _, p := range n.Pods() {
					harness.OK(t, onOneENI(families, p, harness.ENIs(l, n)))
				}
			}
			reach(t, l, "at first", questions(many+few, families, tc.egress || families == ipfamily.OnlyIPv6))
			asksCache(t, nodes[0])
			keptApart(t, l, nodes[0].Pods()[0])

			freed := nodes[1].Pods()[0].Addrs
			harness.Remove(t, nodes[1], "pod-0")
			next := harness.Add(t, nodes[1], "next")
			if share(next.Addrs, freed) {
				t.Errorf("the next pod has %v, of which some cool: %v", next.Addrs, freed)
			}
			if tc.egress { // a setting is about new pods
				nodes[0].Args = append(nodes[0].Args, "--enable-v6-egress=false")
			}
			harness.Restart(t, nodes[0])
			reach(t, l, "after a restart of berthd", 0)
			empty(t, l)
		})
	}
}

// asksCache checks that NodeLocal DNSCache answers all pods of a node, although its packets are not
// tracked.
func asksCache(t *testing.T, n *node.Node) {
	t.Helper()
	for _, backend := range dnscache.Backends {
		cache, err := dnscache.Install(n.Netns, backend, echo.Port)
		harness.OK(t, err)
		for _, p := range n.Pods() {
			for _, own := range p.Addrs {
				for _, a := range dnscache.Addrs {
					if ipfamily.Of(a) == ipfamily.Of(own) {
						harness.OK(t, harness.Asks(t, p.Netns(), a, own))
					}
				}
			}
		}
		harness.OK(t, cache.Remove())
	}
}

// keptApart checks that a pod gets no metadata, and that nobody outside reaches it.
func keptApart(t *testing.T, l *lab.Lab, p *node.Pod) {
	t.Helper()
	for _, a := range p.Addrs {
		metadata, outside := fabric.IMDSEndpoint, fabric.InternetHost
		if a.Is6() {
			metadata, outside = fabric.IMDSEndpoint6, fabric.InternetHost6
		}
		const within = 300 * time.Millisecond
		url := "http://" + netip.AddrPortFrom(metadata, 80).String() + "/latest/meta-data/instance-id"
		if got, err := ns.Get(harness.Deadline(t, within), p.Netns(), url); err == nil {
			t.Errorf("the pod with %s got the instance ID %s", a, got)
		}
		if r, err := echo.Ask(harness.Deadline(t, within), l.OutsidePath(), "udp", netip.AddrPortFrom(a, echo.Port), outside, "x"); err == nil {
			t.Errorf("%s is reached from outside: %q", a, r)
		}
	}
}

// onOneENI expects a pod to have one address of each family, all on one ENI.
func onOneENI(families ipfamily.Set, p *node.Pod, enis []vpc.ENI) error {
	var got []ipfamily.Family
	for _, a := range p.Addrs {
		got = append(got, ipfamily.Of(a))
	}
	if !slices.Equal(got, families.Families()) {
		return fmt.Errorf("pod %s of %s has %v, want one address of each of %v", p.Name, p.Node, p.Addrs, families.Families())
	}
	for _, e := range enis {
		if !slices.ContainsFunc(p.Addrs, func(a netip.Addr) bool { return !e.Owns(a) }) {
			return nil
		}
	}
	return fmt.Errorf("pod %s of %s has %v, which are not on one ENI", p.Name, p.Node, p.Addrs)
}
