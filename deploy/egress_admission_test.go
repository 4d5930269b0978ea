package deploy_test

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/test/harness"
)

// egress is one of default as a user makes it.
func egress(name string) *v1alpha1.Egress {
	return &v1alpha1.Egress{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: v1alpha1.EgressSpec{Destinations: []string{"0.0.0.0/0"}}}
}

// egressClient is one as the operator makes it for a pod of default on node-1.
func egressClient(pod string) *v1alpha1.EgressClient {
	return &v1alpha1.EgressClient{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: pod,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod, UID: types.UID("uid-of-" + pod)}},
		},
		Spec: v1alpha1.EgressClientSpec{PodUID: "uid-of-" + pod, NodeName: "node-1", Egresses: []v1alpha1.EgressReference{{Namespace: "default", Name: "nat", UID: "1"}}},
	}
}

// egressSlice is one as the operator makes it for an Egress of default.
func egressSlice(name, of string) *v1alpha1.EgressClientSlice {
	return &v1alpha1.EgressClientSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, Labels: map[string]string{v1alpha1.LabelEgress: of},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "berth.dev/v1alpha1", Kind: "Egress", Name: of, UID: "1"}},
		},
		Clients: []v1alpha1.ServedClient{{UID: "1", Addresses: []string{"10.0.0.1"}}},
	}
}

// applyEgressPolicies begins a test with the policies of Egresses and nothing else, each of
// which holds.
func applyEgressPolicies(t *testing.T) {
	t.Helper()
	harness.KubeClean(t)
	applyPoliciesOfRelease(t, deploy.Release{Values: map[string]any{"mode": deploy.NodeMode, "clusterName": "test", "egress": map[string]any{"enabled": true}}})
	daemon, operator, other := account(t, "berthd", ""), account(t, "berth-operator", ""), account(t, "another", "")
	untilRefused(t, map[string]func() error{
		"daemon's":   func() error { return daemon.Create(t.Context(), egressClient("probe"), client.DryRunAll) },
		"operator's": func() error { return operator.Create(t.Context(), egress("probe"), client.DryRunAll) },
		"others'":    func() error { return other.Create(t.Context(), egressClient("probe"), client.DryRunAll) },
	})
}

func setUp(o *v1alpha1.EgressClient) {
	o.Status.Node = &v1alpha1.EgressClientNode{State: v1alpha1.EgressClientSetUp, ContainerID: "c", Addresses: []string{"10.0.0.1"}, Egresses: o.Spec.Egresses}
}

func conditioned(o *v1alpha1.EgressClient) {
	o.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: "True", Reason: "SetUp", LastTransitionTime: metav1.Now()}}
}

func TestDaemonSetsUpItsOwnEgressClients(t *testing.T) {
	applyEgressPolicies(t)
	operator, daemon, other := account(t, "berth-operator", ""), account(t, "berthd", "node-1"), account(t, "berthd", "node-2")
	o, slice, user := egressClient("web"), egressSlice("nat-1", "nat"), egress("nat")
	harness.OK(t, operator.Create(t.Context(), o))
	harness.OK(t, operator.Create(t.Context(), slice))
	harness.OK(t, harness.KubeClient(t).Create(t.Context(), user))

	t.Run("its own", func(t *testing.T) {
		harness.OK(t, changeStatus(t, daemon, o, setUp))
		harness.OK(t, changeStatus(t, daemon, o, func(o *v1alpha1.EgressClient) { o.Status.Node.State = v1alpha1.EgressClientGone }))
		harness.OK(t, changeStatus(t, operator, o, conditioned))
		harness.OK(t, changeStatus(t, daemon, o, setUp))
	})
	t.Run("not another's", func(t *testing.T) {
		forbidden(t, changeStatus(t, other, o, setUpElsewhere), "berthd of node node-2 may write the status of that node's EgressClients only, and spec.nodeName is node-1")
		forbidden(t, changeStatus(t, account(t, "berthd", ""), o, setUpElsewhere), "this token names no node")
	})
	t.Run("nothing else of the status", func(t *testing.T) {
		forbidden(t, changeStatus(t, daemon, o, func(o *v1alpha1.EgressClient) { o.Status.Conditions[0].Status = "False" }), "berthd may write status.node only")
		forbidden(t, changeStatus(t, daemon, o, func(o *v1alpha1.EgressClient) { o.Status.Conditions = nil }), "berthd may write status.node only")
	})
	t.Run("no object", func(t *testing.T) {
		const why = "berthd may write the status of EgressClients only"
		forbidden(t, daemon.Create(t.Context(), egressClient("mine")), why)
		forbidden(t, daemon.Create(t.Context(), egressSlice("mine", "nat")), why)
		forbidden(t, daemon.Create(t.Context(), egress("mine")), why)
		forbidden(t, change(t, daemon, o, func(o *v1alpha1.EgressClient) { o.Spec.Egresses = nil }), why)
		forbidden(t, change(t, daemon, o, func(o *v1alpha1.EgressClient) { o.Labels = map[string]string{"a": "b"} }), why)
		forbidden(t, change(t, daemon, slice, func(s *v1alpha1.EgressClientSlice) { s.Clients[0].Addresses = []string{"10.0.0.2"} }), why)
		forbidden(t, change(t, daemon, user, func(e *v1alpha1.Egress) { e.Spec.Destinations = []string{"::/0"} }), why)
		forbidden(t, changeStatus(t, daemon, user, func(e *v1alpha1.Egress) { e.Status.Gateways = nil; e.Status.Clients = 3 }), why)
		for _, object := range []client.Object{o, slice, user} {
			forbidden(t, daemon.Delete(t.Context(), object), why)
		}
	})
}

func setUpElsewhere(o *v1alpha1.EgressClient) {
	setUp(o)
	o.Status.Node.Addresses = []string{"10.0.0.9"}
}

// Who uses an Egress nobody but the programs may say, nor where its gateways are: not the
// administrator, a user who may do everything else, or a gateway.
func TestOperatorAloneSaysWhoUsesEgresses(t *testing.T) {
	applyEgressPolicies(t)
	operator := account(t, "berth-operator", "")
	o, slice, user := egressClient("web"), egressSlice("nat-1", "nat"), egress("nat")
	harness.OK(t, operator.Create(t.Context(), o))
	harness.OK(t, operator.Create(t.Context(), slice))
	harness.OK(t, account(t, "another", "node-1").Create(t.Context(), user))
	for _, as := range []client.Client{harness.KubeClient(t), account(t, "another", "node-1")} {
		const made, written = "EgressClients and EgressClientSlices are made by berth-operator; this is ", "EgressClients and EgressClientSlices are written by berth-operator"
		forbidden(t, as.Create(t.Context(), egressClient("mine")), made)
		forbidden(t, as.Create(t.Context(), egressSlice("mine", "nat")), made)
		forbidden(t, change(t, as, o, func(o *v1alpha1.EgressClient) { o.Spec.Egresses = nil }), written)
		forbidden(t, change(t, as, o, func(o *v1alpha1.EgressClient) { o.Labels = map[string]string{"a": "b"} }), written)
		forbidden(t, changeStatus(t, as, o, setUp), written)
		forbidden(t, changeStatus(t, as, o, conditioned), written)
		forbidden(t, change(t, as, slice, func(s *v1alpha1.EgressClientSlice) { s.Clients = nil }), written)
		forbidden(t, change(t, as, slice, func(s *v1alpha1.EgressClientSlice) { s.Labels[v1alpha1.LabelEgress] = "mine" }), written)
		forbidden(t, changeStatus(t, as, user, func(e *v1alpha1.Egress) {
			e.Status.Gateways = []v1alpha1.EgressGateway{{Name: "mine", UID: "1", Addresses: []string{"10.0.0.1"}}}
		}), "the status of an Egress is written by berth-operator")
		harness.OK(t, change(t, as, user, func(e *v1alpha1.Egress) { e.Spec.Destinations = []string{"::/0"} }))
		harness.OK(t, change(t, as, o, func(o *v1alpha1.EgressClient) { o.OwnerReferences = nil })) // as the garbage collector
		harness.OK(t, as.Delete(t.Context(), o))
		o = egressClient("web")
		harness.OK(t, operator.Create(t.Context(), o))
	}
}

func TestOperatorTellsOfEgressClients(t *testing.T) {
	applyEgressPolicies(t)
	operator := account(t, "berth-operator", "node-1")
	o, slice, user := egressClient("web"), egressSlice("nat-1", "nat"), egress("nat")
	harness.OK(t, operator.Create(t.Context(), o))
	harness.OK(t, operator.Create(t.Context(), slice))
	harness.OK(t, harness.KubeClient(t).Create(t.Context(), user))

	t.Run("what it says", func(t *testing.T) {
		harness.OK(t, change(t, operator, o, func(o *v1alpha1.EgressClient) { o.Spec.Egresses = nil }))
		harness.OK(t, changeStatus(t, operator, o, conditioned))
		harness.OK(t, change(t, operator, slice, func(s *v1alpha1.EgressClientSlice) { s.Clients = nil }))
		harness.OK(t, changeStatus(t, operator, user, func(e *v1alpha1.Egress) { e.Status.Clients = 3 }))
	})
	t.Run("not what a node says", func(t *testing.T) {
		const why = "berth-operator may not write status.node of an EgressClient"
		forbidden(t, changeStatus(t, operator, o, setUp), why)
		harness.OK(t, changeStatus(t, account(t, "berthd", "node-1"), o, setUp))
		forbidden(t, changeStatus(t, operator, o, func(o *v1alpha1.EgressClient) { o.Status.Node = nil }), why)
		harness.OK(t, changeStatus(t, operator, o, func(o *v1alpha1.EgressClient) { o.Status.Conditions[0].Reason = "Other" }))
	})
	t.Run("not what users say", func(t *testing.T) {
		const why = "berth-operator may write the status of an Egress only"
		forbidden(t, operator.Create(t.Context(), egress("mine")), why)
		forbidden(t, change(t, operator, user, func(e *v1alpha1.Egress) { e.Spec.Destinations = []string{"::/0"} }), why)
		forbidden(t, change(t, operator, user, func(e *v1alpha1.Egress) { e.Labels = map[string]string{"a": "b"} }), why)
		forbidden(t, operator.Delete(t.Context(), user), why)
	})
	t.Run("only of pods and Egresses", func(t *testing.T) {
		for what, made := range map[string]client.Object{
			"no owner":        edited(egressClient("b"), func(o *v1alpha1.EgressClient) { o.OwnerReferences = nil }),
			"another's name":  edited(egressClient("b"), func(o *v1alpha1.EgressClient) { o.OwnerReferences[0].Name = "a" }),
			"a node's":        edited(egressClient("b"), func(o *v1alpha1.EgressClient) { o.OwnerReferences[0].Kind = "Node" }),
			"a finalizer":     edited(egressClient("b"), func(o *v1alpha1.EgressClient) { o.Finalizers = []string{"a/b"} }),
			"a label":         edited(egressClient("b"), func(o *v1alpha1.EgressClient) { o.Labels = map[string]string{"a": "b"} }),
			"an annotation":   edited(egressClient("b"), func(o *v1alpha1.EgressClient) { o.Annotations = map[string]string{"a": "b"} }),
			"a slice of none": edited(egressSlice("b", "nat"), func(s *v1alpha1.EgressClientSlice) { s.OwnerReferences = nil }),
			"of another":      edited(egressSlice("b", "nat"), func(s *v1alpha1.EgressClientSlice) { s.Labels[v1alpha1.LabelEgress] = "other" }),
			"of a pod":        edited(egressSlice("b", "nat"), func(s *v1alpha1.EgressClientSlice) { s.OwnerReferences[0].Kind = "Pod" }),
		} {
			if err := operator.Create(t.Context(), made); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "berth-operator may make an EgressClient for the pod of its name") {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
	t.Run("nothing in metadata", func(t *testing.T) {
		for _, object := range []client.Object{o, slice} {
			for _, body := range []string{
				`{"metadata":{"finalizers":["a/b"]}}`, `{"metadata":{"labels":{"a":"c"}}}`, `{"metadata":{"annotations":{"a":"c"}}}`, `{"metadata":{"ownerReferences":null}}`,
			} {
				forbidden(t, patch(t, operator, object, body), "may not change finalizers, owner references, labels or annotations")
			}
		}
	})
	t.Run("takes them away", func(t *testing.T) {
		harness.OK(t, operator.Delete(t.Context(), o))
		harness.OK(t, operator.Delete(t.Context(), slice))
	})
}

// edited is an object with a change.
func edited[O client.Object](o O, how func(O)) O {
	how(o)
	return o
}
