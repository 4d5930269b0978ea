package lab

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/internal/vpclab/ns"
	"github.com/berthnet/berth/internal/vpclab/spec"
)

// TestTheClusterFollowsTheCloud launches, stops and terminates an instance and
// looks at its Node, while the API server comes and goes.
func TestTheClusterFollowsTheCloud(t *testing.T) {
	l := start(t, Options{Nodes: 1, Mode: OperatorMode, BinDir: t.TempDir()})
	ctx := t.Context()
	n := &corev1.Node{}
	ok(t, l.Kube.Client.Get(ctx, client.ObjectKey{Name: "node-1"}, n))
	books := l.Books()
	first := books.Instances[0]
	if want := "aws:///" + first.Zone + "/" + first.ID; n.Spec.ProviderID != want {
		t.Errorf("provider ID %q, want %q", n.Spec.ProviderID, want)
	}
	if c := n.Status.Conditions; len(c) != 1 || c[0].Type != corev1.NodeReady || c[0].Status != corev1.ConditionTrue {
		t.Errorf("conditions %+v", c)
	}
	// From inside a node, as a daemon.
	_, err := ns.Get(ctx, l.Nodes()[0].Netns, "http://"+l.Kube.URL()[len("https://"):]+"/")
	if err == nil {
		t.Error("the API server answers without TLS")
	}
	ok(t, l.Kube.KillAPIServer())
	i, err := l.Cloud.RunInstance(spec.Instance{Name: "late", Type: "m5.large", Subnet: "a", Role: "node"})
	ok(t, err)
	l.CatchUp()
	ok(t, l.Kube.StartAPIServer(ctx))
	ok(t, l.Reported(ctx))
	ok(t, l.Kube.Client.Get(ctx, client.ObjectKey{Name: "late"}, n))
	late, err := l.Node("late")
	ok(t, err)
	ok(t, l.BindPods(ctx, late, "a", "b"))
	ok(t, l.Cloud.TerminateInstance(i.ID))
	l.CatchUp()
	eventually(t, "the Node goes", func() bool {
		return apierrors.IsNotFound(l.Kube.Client.Get(ctx, client.ObjectKey{Name: "late"}, n))
	})
	ok(t, l.Reported(ctx))
	pods := &corev1.PodList{}
	ok(t, l.Kube.Client.List(ctx, pods, client.MatchingFields{"spec.nodeName": "late"}))
	if len(pods.Items) != 0 {
		t.Errorf("%d pods are left on a node that is gone", len(pods.Items))
	}
}
