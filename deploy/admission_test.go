package deploy_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/test/harness"
)

func nodeNetwork(name string) *v1alpha1.NodeNetwork {
	n := &v1alpha1.NodeNetwork{Spec: v1alpha1.NodeNetworkSpec{InstanceID: "i-1", InstanceType: "m5.large"}}
	n.Name = name
	return n
}

// applyPolicies installs only the policies of operator mode.
func applyPolicies(t *testing.T) {
	t.Helper()
	harness.KubeClean(t)
	applyPoliciesOf(t, deploy.OperatorMode)
	c, probe := harness.KubeClient(t), nodeNetwork("probe")
	harness.OK(t, c.Create(t.Context(), probe))
	changed := probe.DeepCopy()
	changed.Spec.InstanceType = "m5.xlarge"
	untilRefused(t, map[string]func() error{
		"the daemon's": func() error {
			return account(t, "berthd", "").Update(t.Context(), changed.DeepCopy(), client.DryRunAll)
		},
		"the operator's": func() error {
			return account(t, "berth-operator", "").Update(t.Context(), changed.DeepCopy(), client.DryRunAll)
		},
	})
	harness.OK(t, c.Delete(t.Context(), probe))
}

func TestDaemonWritesItsOwnNode(t *testing.T) {
	applyPolicies(t)
	admin := harness.KubeClient(t)
	daemon := account(t, "berthd", "node-1")
	available := map[string]v1alpha1.AvailableAddress{"10.0.0.4": {Resource: "eni-1"}}

	t.Run("creates its own, without addresses", func(t *testing.T) {
		for _, addresses := range []v1alpha1.IPAMSpec{{Available: available}, {Releasing: []string{"10.0.0.4"}}, {Unassigning: []string{"eni-1"}}} {
			n := nodeNetwork("node-1")
			n.Spec.IPAM = addresses
			forbidden(t, daemon.Create(t.Context(), n), "only without spec.ipam")
		}
		harness.OK(t, daemon.Create(t.Context(), nodeNetwork("node-1")))
	})
	t.Run("not another's", func(t *testing.T) {
		const why = "berthd of node node-1 may write the NodeNetwork of that name only, not node-2"
		forbidden(t, daemon.Create(t.Context(), nodeNetwork("node-2")), why)
		harness.OK(t, admin.Create(t.Context(), nodeNetwork("node-2")))
		forbidden(t, daemon.Delete(t.Context(), nodeNetwork("node-2")), why)
		forbidden(t, changeStatus(t, daemon, nodeNetwork("node-2"), func(n *v1alpha1.NodeNetwork) { n.Status.IPAM.UsedCount = 1 }), why)
	})
	t.Run("not without a node", func(t *testing.T) {
		const why = "this token names no node"
		loose := account(t, "berthd", "")
		forbidden(t, loose.Create(t.Context(), nodeNetwork("node-3")), why)
		forbidden(t, loose.Delete(t.Context(), nodeNetwork("node-1")), why)
	})
	t.Run("reports what it uses", func(t *testing.T) {
		harness.OK(t, changeStatus(t, daemon, nodeNetwork("node-1"), func(n *v1alpha1.NodeNetwork) {
			n.Status.IPAM = v1alpha1.IPAMStatus{UsedCount: 1, Used: map[string]v1alpha1.UsedAddress{"10.0.0.4": {Owner: "default/a"}}}
		}))
	})
	t.Run("reports once the operator has, too", func(t *testing.T) {
		harness.OK(t, changeStatus(t, admin, nodeNetwork("node-1"), func(n *v1alpha1.NodeNetwork) {
			n.Status.ENI = v1alpha1.ENIStatus{Count: 1, Available: 1, ENIs: map[string]v1alpha1.ENI{"eni-1": {MAC: "02:00:00:00:00:01"}}}
			n.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: "True", Reason: "Served", LastTransitionTime: metav1.Now()}}
		}))
		harness.OK(t, changeStatus(t, daemon, nodeNetwork("node-1"), func(n *v1alpha1.NodeNetwork) { n.Status.IPAM.Waiting = 2 }))
	})
	t.Run("nothing else of the status", func(t *testing.T) {
		const why = "berthd may write status.ipam only"
		forbidden(t, changeStatus(t, daemon, nodeNetwork("node-1"), func(n *v1alpha1.NodeNetwork) { n.Status.ENI.Available = 9 }), why)
		forbidden(t, changeStatus(t, daemon, nodeNetwork("node-1"), func(n *v1alpha1.NodeNetwork) { n.Status.Conditions = nil }), why)
	})
	t.Run("nothing of the object once it is there", func(t *testing.T) {
		const why = "may change only status.ipam of an existing NodeNetwork"
		forbidden(t, change(t, daemon, nodeNetwork("node-1"), func(n *v1alpha1.NodeNetwork) { n.Spec.IPAM.Available = available }), why)
		forbidden(t, change(t, daemon, nodeNetwork("node-1"), func(n *v1alpha1.NodeNetwork) { n.Labels = map[string]string{"a": "b"} }), why)
	})
	t.Run("deletes its own once the operator says that it is of no use, and not before", func(t *testing.T) {
		const why = "only if the operator's condition Degraded says that the instance belongs to another node or is gone"
		says := func(kind string, status metav1.ConditionStatus, reason string) {
			t.Helper()
			harness.OK(t, changeStatus(t, admin, nodeNetwork("node-1"), func(n *v1alpha1.NodeNetwork) {
				n.Status.Conditions = []metav1.Condition{{Type: kind, Status: status, Reason: reason, LastTransitionTime: metav1.Now()}}
			}))
		}
		forbidden(t, daemon.Delete(t.Context(), nodeNetwork("node-1")), why)
		forbidden(t, daemon.DeleteAllOf(t.Context(), &v1alpha1.NodeNetwork{}, client.MatchingFields{"metadata.name": "node-1"}), why)
		for _, c := range []metav1.Condition{
			{Type: "Degraded", Status: "True", Reason: "NotProved"},
			{Type: "Degraded", Status: "False", Reason: "InstanceGone"},
			{Type: "Ready", Status: "False", Reason: "InstanceGone"},
		} {
			says(c.Type, c.Status, c.Reason)
			forbidden(t, daemon.Delete(t.Context(), nodeNetwork("node-1")), why)
		}
		says("Degraded", "True", "AnotherInstance")
		harness.OK(t, daemon.Delete(t.Context(), nodeNetwork("node-1"), client.DryRunAll))
		says("Degraded", "True", "InstanceGone")
		harness.OK(t, daemon.Delete(t.Context(), nodeNetwork("node-1")))
	})
}

func TestOperatorWritesAddresses(t *testing.T) {
	applyPolicies(t)
	admin := harness.KubeClient(t)
	operator := account(t, "berth-operator", "node-1")
	harness.OK(t, admin.Create(t.Context(), nodeNetwork("node-1")))

	t.Run("spec.ipam, status.eni and the conditions of any node", func(t *testing.T) {
		harness.OK(t, change(t, operator, nodeNetwork("node-1"), func(n *v1alpha1.NodeNetwork) {
			n.Spec.IPAM.Available = map[string]v1alpha1.AvailableAddress{"10.0.0.4": {Resource: "eni-1"}}
		}))
		harness.OK(t, changeStatus(t, operator, nodeNetwork("node-1"), func(n *v1alpha1.NodeNetwork) {
			n.Status.ENI.Available = 1
			n.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: "True", Reason: "Served", LastTransitionTime: metav1.Now()}}
		}))
	})
	t.Run("not what the daemon reports", func(t *testing.T) {
		forbidden(t, changeStatus(t, operator, nodeNetwork("node-1"), func(n *v1alpha1.NodeNetwork) { n.Status.IPAM.UsedCount = 1 }),
			"may not write status.ipam, which belongs to the daemon")
	})
	t.Run("not what the node should be", func(t *testing.T) {
		const why = "may write spec.ipam only"
		forbidden(t, change(t, operator, nodeNetwork("node-1"), func(n *v1alpha1.NodeNetwork) { n.Spec.InstanceID = "i-2" }), why)
		forbidden(t, change(t, operator, nodeNetwork("node-1"), func(n *v1alpha1.NodeNetwork) { n.Spec.InstanceType = "m5.xlarge" }), why)
		eight := int32(8)
		forbidden(t, change(t, operator, nodeNetwork("node-1"), func(n *v1alpha1.NodeNetwork) { n.Spec.ENI.PreAllocate = &eight }), why)
	})
	t.Run("no new object", func(t *testing.T) {
		forbidden(t, operator.Create(t.Context(), nodeNetwork("node-2")), "may not create a NodeNetwork")
	})
	t.Run("deletes those of nodes that are gone", func(t *testing.T) {
		harness.OK(t, operator.Delete(t.Context(), nodeNetwork("node-1")))
	})
}

// The policies do not apply to people and other clients with RBAC rights.
func TestPoliciesDoNotApplyToOthers(t *testing.T) {
	applyPolicies(t)
	other := account(t, "another", "")
	n := nodeNetwork("node-1")
	n.Spec.IPAM.Available = map[string]v1alpha1.AvailableAddress{"10.0.0.4": {Resource: "eni-1"}}
	harness.OK(t, other.Create(t.Context(), n))
	harness.OK(t, change(t, other, nodeNetwork("node-1"), func(n *v1alpha1.NodeNetwork) { n.Spec.InstanceType = "m5.xlarge" }))
}
