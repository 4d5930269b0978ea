package labs

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// podNetwork is an additional CIDR of the VPC with subnets for pods.
var podNetwork = netip.MustParsePrefix("100.64.0.0/16")

const (
	podGroup = "pods"     // security group of pods' ENIs
	labelFor = "for"      // tag of pods' subnets
	apart    = "pods"     // value of that tag
	whose    = "pods.lab" // label of Nodes with pods in these subnets
)

// withPodSubnets returns a lab's VPC with a subnet for pods in each zone, and a security group for them.
func withPodSubnets(nodes int, instanceType string) *spec.Spec {
	s := lab.DefaultSpec(nodes, instanceType)
	v := &s.VPCs[0]
	v.CIDRs = append(v.CIDRs, podNetwork)
	group := v.SecurityGroups[0]
	group.Ingress = slices.Clone(group.Ingress)
	group.Ingress[0].CIDRs = append(slices.Clone(group.Ingress[0].CIDRs), podNetwork)
	v.SecurityGroups[0] = group
	group.Name, group.Description = podGroup, "pods"
	v.SecurityGroups = append(v.SecurityGroups, group)
	for i, n := range slices.Clone(v.Subnets) {
		v.Subnets = append(v.Subnets, spec.Subnet{
			Name: "pods-" + n.Name, Zone: n.Zone, CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{100, 64, byte(16 * i), 0}), 20),
			Tags: map[string]string{labelFor: apart},
		})
	}
	return &s
}

// TestNodeNetworkTemplateApplies labels one of two nodes while its daemon runs, so that a template puts its pods into
// other subnets with another security group. The other node is unaffected. Pods reach each other, the nodes and the
// internet, even after a restart. Once the label is removed, new ENIs are created as before, and existing ones
// continue to serve their pods. With outdatedENIs: Drain, ENIs that do not match are deleted after their pods. An
// invalid template is reported, and the last valid one stays in effect across a restart.
func TestNodeNetworkTemplateApplies(t *testing.T) {
	t.Parallel()
	few := harness.Few(t, "t3.small")
	const pods = 2 // one more ENI is enough for these and a warm address
	for _, tc := range []struct {
		mode lab.Mode
		args []string
		more int // one pod more than the existing ENI, and eth0 in node mode, have addresses for
	}{
		{lab.NodeMode, []string{"--warm-ip-target=1", "--minimum-ip-target=1"}, few.PerENI - pods + few.Primary + 1},
		{lab.OperatorMode, []string{"--pre-allocate=1", "--min-allocate=1"}, few.PerENI - pods + 1},
	} {
		t.Run(string(tc.mode), func(t *testing.T) {
			t.Parallel()
			if tc.mode == lab.OperatorMode { // TestIPv6OnlySubnets/pods uses a template in operator mode in every gate
				harness.Rotate(t, 6)
			}
			l := harness.RaiseQuick(t, tc.mode, lab.Options{
				Spec: withPodSubnets(2, few.Type), NodeNetworkTemplates: tc.mode == lab.NodeMode,
				DaemonArgs: append(tc.args, "--warm-wait=2m"),
			})
			there, other := l.Nodes()[0], l.Nodes()[1]
			group := groupNamed(t, l, podGroup)
			harness.OK(t, l.Kube.Client.Create(harness.Deadline(t, patience), &v1alpha1.NodeNetworkTemplate{
				ObjectMeta: metav1.ObjectMeta{Name: "pods"},
				Spec: v1alpha1.NodeNetworkTemplateSpec{
					NodeSelector: v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{whose: "apart"}},
					ENI: v1alpha1.ENISpec{
						SubnetTags: map[string]string{labelFor: apart}, SecurityGroups: []string{group}, FirstInterfaceIndex: new(int32(1)),
					},
					OutdatedENIs: v1alpha1.DrainOutdated,
				},
			}))
			harness.Add(t, other, "before")
			label(t, l, there, map[string]string{whose: "apart"})
			applies(t, there, "NodeNetworkTemplate/pods")
			applies(t, other, "")

			drained(t, l, there, group)

			harness.OK(t, harness.AddMany(t, there, "pod", pods, node.PodOptions{}))
			harness.OK(t, harness.AddMany(t, other, "pod", pods, node.PodOptions{}))
			arePodsOf := func(n *node.Node, in bool) {
				t.Helper()
				for _, p := range n.Pods() {
					harness.OK(t, isApart(l, p, group, in, in || tc.mode == lab.NodeMode))
				}
			}
			arePodsOf(there, true)
			arePodsOf(other, false)
			want := questions(2*pods+1, harness.Families(), harness.Families() == ipfamily.OnlyIPv6)
			reach(t, l, "after the start", want)
			harness.Restart(t, there)
			applies(t, there, "NodeNetworkTemplate/pods")
			reach(t, l, "after a restart of berthd", want)

			label(t, l, there, nil)
			applies(t, there, "")
			arePodsOf(there, true)
			before := harness.ENIs(l, there)
			harness.OK(t, harness.AddMany(t, there, "more", tc.more, node.PodOptions{}))
			enis := harness.ENIs(l, there)
			if len(enis) != len(before)+1 {
				t.Errorf("%d ENIs, want one more than %d", len(enis), len(before))
			}
			for _, e := range enis {
				if !slices.ContainsFunc(before, func(b vpc.ENI) bool { return b.ID == e.ID }) && (tc.mode == lab.NodeMode && e.SubnetID != enis[0].SubnetID || !slices.Equal(e.Groups, enis[0].Groups)) {
					t.Errorf("new ENI is in %s with groups %v, want %s with %v like eth0", e.SubnetID, e.Groups, enis[0].SubnetID, enis[0].Groups)
				}
			}
			reach(t, l, "without the label", 0)

			label(t, l, there, map[string]string{whose: "apart"})
			applies(t, there, "NodeNetworkTemplate/pods")
			for i := range tc.more {
				harness.Remove(t, there, fmt.Sprintf("more-%d", i))
			}
			drained(t, l, there, group)
			harness.OK(t, harness.AddMany(t, there, "again", 3, node.PodOptions{})) // more than one ENI has addresses for
			arePodsOf(there, true)
			reach(t, l, "after the drain", 0)

			const beyond = 9 // above the limit of the instance type
			setFirstIndex(t, l, beyond)
			harness.Shows(t, there, "invalid template is reported", func(doc introspect.Document) error {
				if want := fmt.Sprintf("firstInterfaceIndex is %d", beyond); !strings.Contains(doc.LastError, want) {
					return fmt.Errorf("last error = %q, want %q", doc.LastError, want)
				}
				return nil
			})
			harness.Restart(t, there)
			harness.Shows(t, there, "last valid template stays in effect", func(doc introspect.Document) error {
				if doc.Template != "NodeNetworkTemplate/pods" {
					return fmt.Errorf("template = %q", doc.Template)
				}
				return nil
			})
			harness.Add(t, there, "late")
			arePodsOf(there, true)
			setFirstIndex(t, l, 1)
			applies(t, there, "NodeNetworkTemplate/pods")
			empty(t, l)
		})
	}
}

// isApart returns an error unless a pod is in the pods' subnet of its node's zone, on an ENI with only their security
// group; or, if apart is false, without that group and, if place is true, in its node's subnet.
func isApart(l *lab.Lab, p *node.Pod, group string, apart, place bool) error {
	var enis []vpc.ENI
	for _, e := range l.Snapshot().ENIs {
		if e.Owns(p.Addr()) {
			enis = append(enis, e)
		}
	}
	if len(enis) != 1 {
		return fmt.Errorf("address of pod %s on %s = %s, which is on %d ENIs, want one", p.Name, p.Node, p.Addr(), len(enis))
	}
	e := enis[0]
	if in, has := podNetwork.Contains(e.Primary), slices.Equal(e.Groups, []string{group}); place && in != apart || has != apart {
		return fmt.Errorf("pod %s on %s has %s on ENI %d in %s with groups %v, want apart = %v", p.Name, p.Node, p.Addr(), e.Attachment.DeviceIndex, e.SubnetID, e.Groups, apart)
	}
	return nil
}

// applies waits until a node's daemon reports a template, or none if it is empty.
func applies(t *testing.T, n *node.Node, template string) {
	t.Helper()
	harness.Shows(t, n, "template "+template+" applies", func(doc introspect.Document) error {
		if doc.Template != template || doc.LastError != "" {
			return fmt.Errorf("template = %q, last error = %q", doc.Template, doc.LastError)
		}
		return nil
	})
}

// label sets labels of a Node, like a user does.
func label(t *testing.T, l *lab.Lab, n *node.Node, labels map[string]string) {
	t.Helper()
	was := &corev1.Node{}
	ctx := harness.Deadline(t, patience)
	harness.OK(t, l.Kube.Client.Get(ctx, client.ObjectKey{Name: n.Name}, was))
	is := was.DeepCopy()
	delete(is.Labels, whose)
	maps.Copy(is.Labels, labels)
	harness.OK(t, l.Kube.Client.Patch(ctx, is, client.MergeFrom(was)))
}

// drained waits until all ENIs of a node except eth0 are in the pods' subnet with only their security group.
func drained(t *testing.T, l *lab.Lab, n *node.Node, group string) {
	t.Helper()
	harness.Eventually(t, patience, "ENIs that differ from the template are deleted", func() error {
		for _, e := range harness.ENIs(l, n)[1:] {
			if !podNetwork.Contains(e.Primary) || !slices.Equal(e.Groups, []string{group}) {
				return fmt.Errorf("%s is still at device index %d, with %s and groups %v", e.ID, e.Attachment.DeviceIndex, e.Primary, e.Groups)
			}
		}
		return nil
	})
}

// setFirstIndex sets the template's first device index.
func setFirstIndex(t *testing.T, l *lab.Lab, index int) {
	t.Helper()
	o := &v1alpha1.NodeNetworkTemplate{ObjectMeta: metav1.ObjectMeta{Name: "pods"}}
	patch := fmt.Appendf(nil, `{"spec":{"eni":{"firstInterfaceIndex":%d}}}`, index)
	harness.OK(t, l.Kube.Client.Patch(harness.Deadline(t, patience), o, client.RawPatch(types.MergePatchType, patch)))
}

func groupNamed(t *testing.T, l *lab.Lab, name string) string {
	t.Helper()
	for _, g := range l.Snapshot().Groups {
		if g.Name == name {
			return g.ID
		}
	}
	harness.OK(t, errors.New("no security group "+name))
	return ""
}
