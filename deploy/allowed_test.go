package deploy_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/test/harness"
)

// allow writes the list of allowed settings as an administrator, and returns once the API server
// applies it, which it checks with probe: accepted if taken, rejected otherwise.
func allow(t *testing.T, as client.Client, data map[string]string, probe *v1alpha1.NodeNetwork, taken bool) {
	t.Helper()
	admin := harness.KubeClient(t)
	body, err := json.Marshal(map[string]any{"data": data})
	harness.OK(t, err)
	list := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "berthd-allowed"}}
	harness.OK(t, admin.Patch(t.Context(), list, client.RawPatch(types.MergePatchType, body)))
	harness.Eventually(t, limit, "the API server goes by the list", func() error {
		err := as.Create(t.Context(), probe.DeepCopy(), client.DryRunAll)
		if taken {
			return err
		}
		return byPolicy(err)
	})
}

func asking(change func(*v1alpha1.NodeNetwork)) *v1alpha1.NodeNetwork {
	n := nodeNetwork("node-1")
	change(n)
	return n
}

// A daemon's token, stolen or not, can request only what the administrator's list allows: which
// networks its ENIs reach, how many addresses are reserved, and no metadata that makes the object
// hard to delete.
func TestDaemonRequestsWhatIsAllowed(t *testing.T) {
	applyPolicies(t)
	admin, daemon := harness.KubeClient(t), account(t, "berthd", "node-1")
	none := map[string]string{"securityGroups": "", "securityGroupTags": "", "subnetIDs": "", "subnetTags": "", "settings": "", "addresses": "256"}
	groups := func(ids ...string) func(*v1alpha1.NodeNetwork) {
		return func(n *v1alpha1.NodeNetwork) { n.Spec.ENI.SecurityGroups = ids }
	}
	tags := func(tags map[string]string) func(*v1alpha1.NodeNetwork) {
		return func(n *v1alpha1.NodeNetwork) { n.Spec.ENI.SubnetTags = tags }
	}
	allow(t, daemon, none, asking(groups("sg-0a")), false)

	for _, tt := range []struct {
		name   string
		change func(*v1alpha1.NodeNetwork)
		why    string
	}{
		{"a security group", groups("sg-0a"), "spec.eni.securityGroups has sg-0a, which securityGroups of the ConfigMap kube-system/berthd-allowed does not list"},
		{"groups by tags", func(n *v1alpha1.NodeNetwork) { n.Spec.ENI.SecurityGroupTags = map[string]string{"for": "databases"} },
			"spec.eni.securityGroupTags has for=databases, which securityGroupTags of the ConfigMap kube-system/berthd-allowed does not list"},
		{"a subnet", func(n *v1alpha1.NodeNetwork) { n.Spec.ENI.SubnetIDs = []string{"subnet-0a"} },
			"spec.eni.subnetIDs has subnet-0a, which subnetIDs of the ConfigMap kube-system/berthd-allowed does not list"},
		{"subnets by tags", tags(map[string]string{"for": "databases"}),
			"spec.eni.subnetTags has for=databases, which subnetTags of the ConfigMap kube-system/berthd-allowed does not list"},
		{"eth0", func(n *v1alpha1.NodeNetwork) { n.Spec.ENI.FirstInterfaceIndex = new(int32(0)) },
			"spec.eni.firstInterfaceIndex is 0, and settings of the ConfigMap kube-system/berthd-allowed does not list firstInterfaceIndex=0"},
		{"ENIs that stay", func(n *v1alpha1.NodeNetwork) { n.Spec.ENI.DeleteOnTermination = new(false) },
			"spec.eni.deleteOnTermination is false, and settings of the ConfigMap kube-system/berthd-allowed does not list deleteOnTermination=false"},
		{"ENIs' own addresses", func(n *v1alpha1.NodeNetwork) { n.Spec.ENI.UsePrimaryAddress = new(true) },
			"spec.eni.usePrimaryAddress is true, and settings of the ConfigMap kube-system/berthd-allowed does not list usePrimaryAddress=true"},
		{"a trunk", func(n *v1alpha1.NodeNetwork) { n.Spec.ENI.Trunk = new(true) },
			"spec.eni.trunk is true, and settings of the ConfigMap kube-system/berthd-allowed does not list trunk=true"},
		{"a watermark for a subnet", func(n *v1alpha1.NodeNetwork) { n.Spec.ENI.PreAllocate = new(int32(65536)) },
			"spec.eni asks for more than 256 addresses"},
		{"as many at once", func(n *v1alpha1.NodeNetwork) { n.Spec.ENI.MaxAboveWatermark = new(int32(257)) }, "spec.eni asks for more than 256 addresses"},
		{"as many at least", func(n *v1alpha1.NodeNetwork) { n.Spec.ENI.MinAllocate = new(int32(257)) }, "spec.eni asks for more than 256 addresses"},
		{"as many warm", func(n *v1alpha1.NodeNetwork) { n.Spec.ENI.WarmIPTarget = new(int32(257)) }, "spec.eni asks for more than 256 addresses"},
		{"as many to begin with", func(n *v1alpha1.NodeNetwork) { n.Spec.ENI.MinimumIPTarget = new(int32(257)) }, "spec.eni asks for more than 256 addresses"},
		{"as many in prefixes", func(n *v1alpha1.NodeNetwork) { n.Spec.ENI.WarmPrefixTarget = new(int32(17)) }, "spec.eni asks for more than 256 addresses"},
		{"as many in ENIs", func(n *v1alpha1.NodeNetwork) { n.Spec.ENI.WarmENITarget = new(int32(6)) }, "spec.eni asks for more than 256 addresses"},
		{"a finalizer", func(n *v1alpha1.NodeNetwork) { n.Finalizers = []string{"example.com/stay"} }, "only without finalizers, labels and annotations"},
		{"a label", func(n *v1alpha1.NodeNetwork) { n.Labels = map[string]string{"a": "b"} }, "only without finalizers, labels and annotations"},
		{"200 kB of annotations", func(n *v1alpha1.NodeNetwork) {
			n.Annotations = map[string]string{"a": strings.Repeat("x", 200_000)}
		}, "only without finalizers, labels and annotations"},
		{"another Node's object", func(n *v1alpha1.NodeNetwork) {
			n.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "node-2", UID: "1"}}
		}, "only a NodeNetwork that is owned by its own Node"},
		{"two owners", func(n *v1alpha1.NodeNetwork) {
			n.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "node-1", UID: "1"}, {APIVersion: "v1", Kind: "Node", Name: "node-1", UID: "2"}}
		}, "only a NodeNetwork that is owned by its own Node"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			forbidden(t, daemon.Create(t.Context(), asking(tt.change), client.DryRunAll), tt.why)
			if strings.HasPrefix(tt.why, "spec.") { // people may set all of these
				harness.OK(t, admin.Create(t.Context(), asking(tt.change), client.DryRunAll))
			}
		})
	}
	t.Run("what a daemon asks for without settings of its own", func(t *testing.T) {
		harness.OK(t, daemon.Create(t.Context(), asking(func(n *v1alpha1.NodeNetwork) {
			n.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "node-1", UID: "1"}}
			n.Spec.ENI = v1alpha1.ENISpec{
				VPCID: "vpc-0a", AvailabilityZone: "zone-a", MinAllocate: new(int32(256)), PreAllocate: new(int32(8)), MaxAllocate: new(int32(1000)), MaxPods: new(int32(1000)),
				FirstInterfaceIndex: new(int32(1)), PrefixDelegation: new(true), DeleteOnTermination: new(true),
			}
		}), client.DryRunAll))
	})
	t.Run("what is listed", func(t *testing.T) {
		list := map[string]string{
			"securityGroups": "sg-0a,\n sg-0b", "subnetTags": "for=pods, zone=*", "settings": "firstInterfaceIndex=0, usePrimaryAddress=true, trunk=true", "addresses": "1000",
		}
		pods := map[string]string{"for": "pods"}
		allow(t, daemon, list, asking(func(n *v1alpha1.NodeNetwork) {
			n.Spec.ENI.SecurityGroups, n.Spec.ENI.SubnetTags = []string{"sg-0b", "sg-0a"}, pods
		}), true)
		harness.OK(t, daemon.Create(t.Context(), asking(func(n *v1alpha1.NodeNetwork) {
			n.Spec.ENI = v1alpha1.ENISpec{
				SecurityGroups: []string{"sg-0a"}, SubnetTags: map[string]string{"for": "pods", "zone": "a"},
				FirstInterfaceIndex: new(int32(0)), UsePrimaryAddress: new(true), Trunk: new(true), PreAllocate: new(int32(1000)),
			}
		}), client.DryRunAll))
		forbidden(t, daemon.Create(t.Context(), asking(groups("sg-0a", "sg-0c")), client.DryRunAll), "spec.eni.securityGroups has sg-0c")
		forbidden(t, daemon.Create(t.Context(), asking(tags(map[string]string{"for": "pod"})), client.DryRunAll), "spec.eni.subnetTags has for=pod,")
		// Without subnets, any subnet may be used, which is more than the list allows.
		unnamed := asking(func(*v1alpha1.NodeNetwork) {})
		forbidden(t, daemon.Create(t.Context(), unnamed.DeepCopy(), client.DryRunAll), "spec.eni names no subnets")
		harness.OK(t, admin.Create(t.Context(), unnamed.DeepCopy(), client.DryRunAll))
		allow(t, daemon, map[string]string{"subnetTags": "", "subnetIDs": "subnet-0a"}, asking(tags(pods)), false)
		forbidden(t, daemon.Create(t.Context(), unnamed.DeepCopy(), client.DryRunAll), "spec.eni names no subnets")
		allow(t, daemon, map[string]string{"subnetIDs": "subnet-0a, *"}, unnamed, true)
		allow(t, daemon, map[string]string{"securityGroups": "*"}, asking(groups("sg-0c")), true)
	})
	t.Run("not the list itself", func(t *testing.T) {
		list := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "berthd-allowed"}}
		// Rights as in the role of berthd.
		role := one[rbacv1.ClusterRole](t, render(t, deploy.OperatorMode), "berthd")
		for _, rule := range role.Rules {
			if slices.Contains(rule.Resources, "configmaps") {
				t.Error("berthd's role has ConfigMaps")
			}
		}
		harness.OK(t, admin.Get(t.Context(), client.ObjectKeyFromObject(list), list))
	})
}

// If the list is missing, daemons may not create objects.
func TestDaemonsCreateNothingWithoutTheAllowedList(t *testing.T) {
	applyPolicies(t)
	admin, daemon := harness.KubeClient(t), account(t, "berthd", "node-1")
	list := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "berthd-allowed"}}
	harness.OK(t, admin.Delete(t.Context(), list))
	harness.Eventually(t, limit, "creations are refused", func() error {
		err := daemon.Create(t.Context(), nodeNetwork("node-1"), client.DryRunAll)
		if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
			return err
		}
		return byPolicy(err)
	})
}
