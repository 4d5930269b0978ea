package deploy

import (
	"errors"
	"os"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Kube(m.Run)) }

// The service accounts may do everything here, so that it is the policies that refuse.
const everything = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: test-everything}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects:
  - {kind: ServiceAccount, name: berthd, namespace: kube-system}
  - {kind: ServiceAccount, name: berth-operator, namespace: kube-system}
  - {kind: ServiceAccount, name: another, namespace: kube-system}
`

// account is a client with a token of a service account of kube-system, bound
// to a pod on a node, or to nothing without one.
func account(t *testing.T, name, node string) client.Client {
	t.Helper()
	id := types.NamespacedName{Namespace: "kube-system", Name: name}
	var token string
	var err error
	if node == "" {
		token, err = harness.ControlPlane.Token(t.Context(), id, nil)
	} else {
		token, err = harness.ControlPlane.NodeToken(t.Context(), id, node)
	}
	harness.OK(t, err)
	return harness.KubeClientFor(t, harness.ControlPlane.ConfigWithToken(token))
}

func nodeNetwork(name string) *v1alpha1.NodeNetwork {
	n := &v1alpha1.NodeNetwork{Spec: v1alpha1.NodeNetworkSpec{InstanceID: "i-1", InstanceType: "m5.large"}}
	n.Name = name
	return n
}

// edit makes a change to an object that is there, as read by the administrator.
func edit(t *testing.T, as client.Client, name string, change func(*v1alpha1.NodeNetwork)) error {
	t.Helper()
	n := &v1alpha1.NodeNetwork{}
	harness.OK(t, harness.KubeClient(t).Get(t.Context(), types.NamespacedName{Name: name}, n))
	change(n)
	return as.Update(t.Context(), n)
}

func editStatus(t *testing.T, as client.Client, name string, change func(*v1alpha1.NodeNetwork)) error {
	t.Helper()
	n := &v1alpha1.NodeNetwork{}
	harness.OK(t, harness.KubeClient(t).Get(t.Context(), types.NamespacedName{Name: name}, n))
	change(n)
	return as.Status().Update(t.Context(), n)
}

// forbidden checks that a policy refused and said why.
func forbidden(t *testing.T, err error, why string) {
	t.Helper()
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), why) {
		t.Errorf("got %v\nwant it forbidden because %s", err, why)
	}
}

// limit is for what an API server follows a moment later.
const limit = 3 * time.Minute

// byPolicy is nil when a policy refused, and not a role that the API server does
// not know yet.
func byPolicy(err error) error {
	if err == nil || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
		return errors.Join(errors.New("a write that the policies forbid was not refused by one"), err)
	}
	return nil
}

// applyPolicies installs the policies and waits until they hold: the API
// server follows them a moment later.
func applyPolicies(t *testing.T) {
	t.Helper()
	files := fstest.MapFS{
		"everything.yaml": {Data: []byte(everything)},
		"admission.yaml":  {Data: readFile(t, "operator-mode/admission.yaml")},
		"allowed.yaml":    {Data: readFile(t, "operator-mode/allowed.yaml")},
	}
	harness.OK(t, harness.ControlPlane.Apply(t.Context(), files))
	harness.KubeClean(t)
	c := harness.KubeClient(t)
	probe := nodeNetwork("probe")
	harness.OK(t, c.Create(t.Context(), probe))
	daemon, operator := account(t, "berthd", ""), account(t, "berth-operator", "")
	harness.Eventually(t, limit, "the policies hold", func() error {
		for _, as := range []client.Client{daemon, operator} {
			n := probe.DeepCopy()
			n.Spec.InstanceType = "m5.xlarge"
			if err := byPolicy(as.Update(t.Context(), n, client.DryRunAll)); err != nil {
				return err
			}
		}
		return nil
	})
	harness.OK(t, c.Delete(t.Context(), probe))
}

func TestDaemonWritesItsOwnNode(t *testing.T) {
	applyPolicies(t)
	admin := harness.KubeClient(t)
	daemon := account(t, "berthd", "node-1")
	available := map[string]v1alpha1.AvailableAddress{"10.0.0.4": {Resource: "eni-1"}}

	t.Run("creates its own, without addresses", func(t *testing.T) {
		n := nodeNetwork("node-1")
		n.Spec.IPAM.Available = available
		forbidden(t, daemon.Create(t.Context(), n), "without spec.ipam only")
		n = nodeNetwork("node-1")
		n.Spec.IPAM.Releasing = []string{"10.0.0.4"}
		forbidden(t, daemon.Create(t.Context(), n), "without spec.ipam only")
		n = nodeNetwork("node-1")
		n.Spec.IPAM.Unassigning = []string{"eni-1"}
		forbidden(t, daemon.Create(t.Context(), n), "without spec.ipam only")
		harness.OK(t, daemon.Create(t.Context(), nodeNetwork("node-1")))
	})
	t.Run("not another's", func(t *testing.T) {
		const why = "berthd of node node-1 may write the NodeNetwork of that name only, and this is node-2"
		forbidden(t, daemon.Create(t.Context(), nodeNetwork("node-2")), why)
		harness.OK(t, admin.Create(t.Context(), nodeNetwork("node-2")))
		forbidden(t, daemon.Delete(t.Context(), nodeNetwork("node-2")), why)
		forbidden(t, editStatus(t, daemon, "node-2", func(n *v1alpha1.NodeNetwork) { n.Status.IPAM.UsedCount = 1 }), why)
	})
	t.Run("not without a node", func(t *testing.T) {
		const why = "this token names no node"
		loose := account(t, "berthd", "")
		forbidden(t, loose.Create(t.Context(), nodeNetwork("node-3")), why)
		forbidden(t, loose.Delete(t.Context(), nodeNetwork("node-1")), why)
	})
	t.Run("reports what it uses", func(t *testing.T) {
		harness.OK(t, editStatus(t, daemon, "node-1", func(n *v1alpha1.NodeNetwork) {
			n.Status.IPAM = v1alpha1.IPAMStatus{UsedCount: 1, Used: map[string]v1alpha1.UsedAddress{"10.0.0.4": {Owner: "default/a"}}}
		}))
	})
	t.Run("reports once the operator has, too", func(t *testing.T) {
		harness.OK(t, editStatus(t, admin, "node-1", func(n *v1alpha1.NodeNetwork) {
			n.Status.ENI = v1alpha1.ENIStatus{Count: 1, Available: 1, ENIs: map[string]v1alpha1.ENI{"eni-1": {MAC: "02:00:00:00:00:01"}}}
			n.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: "True", Reason: "Served", LastTransitionTime: metav1.Now()}}
		}))
		harness.OK(t, editStatus(t, daemon, "node-1", func(n *v1alpha1.NodeNetwork) { n.Status.IPAM.Waiting = 2 }))
	})
	t.Run("nothing else of the status", func(t *testing.T) {
		const why = "berthd may write status.ipam only"
		forbidden(t, editStatus(t, daemon, "node-1", func(n *v1alpha1.NodeNetwork) { n.Status.ENI.Available = 9 }), why)
		forbidden(t, editStatus(t, daemon, "node-1", func(n *v1alpha1.NodeNetwork) { n.Status.Conditions = nil }), why)
	})
	t.Run("nothing of the object once it is there", func(t *testing.T) {
		const why = "may not change a NodeNetwork that is there, but for status.ipam"
		forbidden(t, edit(t, daemon, "node-1", func(n *v1alpha1.NodeNetwork) { n.Spec.IPAM.Available = available }), why)
		forbidden(t, edit(t, daemon, "node-1", func(n *v1alpha1.NodeNetwork) { n.Labels = map[string]string{"a": "b"} }), why)
	})
	t.Run("deletes its own once the operator says that it is of no use, and not before", func(t *testing.T) {
		const why = "only once the operator says in the condition Degraded that its instance is another's or gone"
		says := func(kind string, status metav1.ConditionStatus, reason string) {
			t.Helper()
			harness.OK(t, editStatus(t, admin, "node-1", func(n *v1alpha1.NodeNetwork) {
				n.Status.Conditions = []metav1.Condition{{Type: kind, Status: status, Reason: reason, LastTransitionTime: metav1.Now()}}
			}))
		}
		forbidden(t, daemon.Delete(t.Context(), nodeNetwork("node-1")), why)
		forbidden(t, daemon.DeleteAllOf(t.Context(), &v1alpha1.NodeNetwork{}, client.MatchingFields{"metadata.name": "node-1"}), why)
		says("Degraded", "True", "NotProved")
		forbidden(t, daemon.Delete(t.Context(), nodeNetwork("node-1")), why)
		says("Degraded", "False", "InstanceGone")
		forbidden(t, daemon.Delete(t.Context(), nodeNetwork("node-1")), why)
		says("Ready", "False", "InstanceGone")
		forbidden(t, daemon.Delete(t.Context(), nodeNetwork("node-1")), why)
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
		harness.OK(t, edit(t, operator, "node-1", func(n *v1alpha1.NodeNetwork) {
			n.Spec.IPAM.Available = map[string]v1alpha1.AvailableAddress{"10.0.0.4": {Resource: "eni-1"}}
		}))
		harness.OK(t, editStatus(t, operator, "node-1", func(n *v1alpha1.NodeNetwork) {
			n.Status.ENI.Available = 1
			n.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: "True", Reason: "Served", LastTransitionTime: metav1.Now()}}
		}))
	})
	t.Run("not what the daemon reports", func(t *testing.T) {
		forbidden(t, editStatus(t, operator, "node-1", func(n *v1alpha1.NodeNetwork) { n.Status.IPAM.UsedCount = 1 }),
			"may not write status.ipam, which is the daemon's")
	})
	t.Run("not what the node should be", func(t *testing.T) {
		const why = "may write spec.ipam only"
		forbidden(t, edit(t, operator, "node-1", func(n *v1alpha1.NodeNetwork) { n.Spec.InstanceID = "i-2" }), why)
		forbidden(t, edit(t, operator, "node-1", func(n *v1alpha1.NodeNetwork) { n.Spec.InstanceType = "m5.xlarge" }), why)
		eight := int32(8)
		forbidden(t, edit(t, operator, "node-1", func(n *v1alpha1.NodeNetwork) { n.Spec.ENI.PreAllocate = &eight }), why)
	})
	t.Run("no new object", func(t *testing.T) {
		forbidden(t, operator.Create(t.Context(), nodeNetwork("node-2")), "may not create a NodeNetwork")
	})
	t.Run("deletes those of nodes that are gone", func(t *testing.T) {
		harness.OK(t, operator.Delete(t.Context(), nodeNetwork("node-1")))
	})
}

// Persons, and others that RBAC lets, are not concerned.
func TestOthersAreNotBound(t *testing.T) {
	applyPolicies(t)
	other := account(t, "another", "")
	n := nodeNetwork("node-1")
	n.Spec.IPAM.Available = map[string]v1alpha1.AvailableAddress{"10.0.0.4": {Resource: "eni-1"}}
	harness.OK(t, other.Create(t.Context(), n))
	harness.OK(t, edit(t, other, "node-1", func(n *v1alpha1.NodeNetwork) { n.Spec.InstanceType = "m5.xlarge" }))
}
