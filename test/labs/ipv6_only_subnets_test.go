package labs

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// nativeBlock has the IPv6-only subnets of withNatives.
var nativeBlock = netip.MustParsePrefix("2001:db8:1:80::/57")

// withNatives gives a spec IPv6, and an IPv6-only subnet for pods in each zone of its VPC, which it
// returns.
func withNatives(t *testing.T, s *spec.Spec) (list []spec.Subnet) {
	t.Helper()
	var err error
	*s, err = lab.WithIPv6(*s)
	harness.OK(t, err)
	v := &s.VPCs[0]
	block := nativeBlock.Addr().As16()
	for i, n := range v.Subnets {
		if !slices.ContainsFunc(list, func(o spec.Subnet) bool { return o.Zone == n.Zone }) {
			list = append(list, spec.Subnet{
				Name: "six-" + n.Name, ID: fmt.Sprintf("subnet-000000000000000%02x", 0x60+i), Zone: n.Zone, IPv6Native: true,
				IPv6: netip.PrefixFrom(netip.AddrFrom16(block), 64), Tags: map[string]string{labelFor: apart},
			})
			block[7]++
		}
	}
	v.Subnets = append(v.Subnets, list...)
	return list
}

// TestIPv6OnlySubnets has IPv6-only pods in subnets without IPv4, in which their nodes are too or
// not. They reach each other, nodes and the internet, and that of IPv4 as their node where it has
// an address of it, also after a restart of berthd. Their ENIs have no IPv4 address; berthd needs
// none either.
func TestIPv6OnlySubnets(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		mode   lab.Mode
		slices []int // nil: every gate
	}{
		{"pods", lab.NodeMode, []int{5}},
		{"pods", lab.OperatorMode, nil},
		{"nodes", lab.NodeMode, nil},
		{"nodes", lab.OperatorMode, []int{8}},
	} {
		t.Run(tc.name+"/"+string(tc.mode), func(t *testing.T) {
			t.Parallel()
			if tc.slices != nil {
				harness.Rotate(t, tc.slices...)
			}
			podsAlone := tc.name == "pods"
			s := lab.DefaultSpec(2, "t3.small")
			natives := withNatives(t, &s)
			if !podsAlone {
				for i := range s.Instances {
					s.Instances[i].Subnet = natives[i].Name
				}
			}
			l := harness.RaiseQuick(t, tc.mode, lab.Options{
				Spec: &s, IPFamilies: ipfamily.OnlyIPv6, DaemonArgs: []string{"--block-metadata"},
				NodeNetworkTemplates: podsAlone && tc.mode == lab.NodeMode,
			})
			if podsAlone {
				podsInTaggedSubnets(t, l)
			}
			liveInNatives(t, l, podsAlone)
		})
	}
}

// podsInTaggedSubnets has a NodeNetworkTemplate put all pods of a lab into the subnets of withNatives.
func podsInTaggedSubnets(t *testing.T, l *lab.Lab) {
	t.Helper()
	harness.OK(t, l.Kube.Client.Create(harness.Deadline(t, patience), &v1alpha1.NodeNetworkTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: "pods"},
		Spec: v1alpha1.NodeNetworkTemplateSpec{
			NodeSelector: v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{whose: "apart"}},
			ENI:          v1alpha1.ENISpec{SubnetTags: map[string]string{labelFor: apart}, FirstInterfaceIndex: new(int32(1))},
		},
	}))
	for _, n := range l.Nodes() {
		label(t, l, n, map[string]string{whose: "apart"})
		applies(t, n, "NodeNetworkTemplate/pods")
	}
}

// liveInNatives runs pods in IPv6-only subnets over a restart of a daemon, and removes them;
// nodeLocal: they also reach IPv4 destinations, as their node.
func liveInNatives(t *testing.T, l *lab.Lab, nodeLocal bool) {
	t.Helper()
	const pods = 3
	want := questions(len(l.Nodes())*pods, ipfamily.OnlyIPv6, nodeLocal)
	for _, n := range l.Nodes() {
		harness.OK(t, harness.AddMany(t, n, "pod", pods, node.PodOptions{}))
		for _, p := range n.Pods() {
			harness.OK(t, inNativeSubnet(p, harness.ENIs(l, n)))
		}
	}
	reach(t, l, "at first", want)
	keptApart(t, l, l.Nodes()[0].Pods()[0])
	harness.Restart(t, l.Nodes()[0])
	reach(t, l, "after a restart of berthd", want)
	empty(t, l)
}

// inNativeSubnet expects a pod to have one address, of an ENI without IPv4.
func inNativeSubnet(p *node.Pod, enis []vpc.ENI) error {
	i := slices.IndexFunc(enis, func(e vpc.ENI) bool { return e.Owns(p.Addr()) })
	if len(p.Addrs) != 1 || !nativeBlock.Contains(p.Addr()) || i < 0 || enis[i].Primary.IsValid() {
		return fmt.Errorf("pod %s of %s has %v, want an address of %s, of an ENI of its node without IPv4", p.Name, p.Node, p.Addrs, nativeBlock)
	}
	return nil
}
