package lab

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
)

// TestPoolModeLab starts a lab in pool mode without Berth. Machines, Node objects and pools exist, and the Node object of a
// removed machine gets Ready=Unknown.
func TestPoolModeLab(t *testing.T) {
	l := start(t, Options{Nodes: 2, Mode: PoolMode, NoDaemons: true})
	ctx := t.Context()
	p := &v1alpha1.AddressPool{}
	ok(t, l.Kube.Client.Get(ctx, client.ObjectKey{Name: v1alpha1.DefaultPool}, p))
	ready := func(want corev1.ConditionStatus) {
		t.Helper()
		ok(t, l.WaitReports(ctx))
		n := &corev1.Node{}
		ok(t, l.Kube.Client.Get(ctx, client.ObjectKey{Name: "node-2"}, n))
		if c := n.Status.Conditions; len(c) != 1 || c[0].Status != want {
			t.Errorf("conditions of node-2 = %+v, want Ready=%s", c, want)
		}
	}
	ready(corev1.ConditionTrue)
	eventually(t, "status lists nodes and pools", func() bool { // Status does not wait long for an API server
		s, err := l.Status(ctx)
		ok(t, err)
		return len(s.Nodes) == 2 && s.Nodes[0].Address.String() == "172.20.1.2" && len(s.Pools) == 1 && s.Pools[0].Name == "default"
	})
	if _, err := l.Nodes()[0].Ask(ctx, "udp", l.Site.Addrs("node-2").IPv6, "hello"); err != nil {
		t.Errorf("ask node-2 from node-1: %v", err)
	}
	ok(t, l.RemoveNode("node-2"))
	ready(corev1.ConditionUnknown)
	ok(t, l.RemoveNodeObject(ctx, "node-2"))
	if err := l.Kube.Client.Get(ctx, client.ObjectKey{Name: "node-2"}, &corev1.Node{}); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("Node after RemoveNodeObject: %v, want not found", err)
	}
	if _, err := l.AddNode("node-1"); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("AddNode() of an existing node = %v, want error", err)
	}
}
