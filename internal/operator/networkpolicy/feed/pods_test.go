package feed

import (
	"net/netip"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/policy/resolve"
)

func addrs(list ...string) (out []netip.Addr) {
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

// pod is a pod whose name is its label app.
func pod(name, node string, own ...string) resolve.Pod {
	return resolve.Pod{
		NamespacedName: types.NamespacedName{Namespace: "default", Name: name}, UID: types.UID(name), Node: node,
		Labels: map[string]string{"app": name}, Addrs: addrs(own...),
	}
}

// allowClients lets clients reach servers.
func allowClients() *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "allow-clients"}}
	p.Spec.PodSelector.MatchLabels = map[string]string{"app": "server"}
	p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "client"}}}}}}
	return p
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// only is the one set that a node knows.
func only(t *testing.T, s *policy.State) (id policy.SetID) {
	t.Helper()
	n := 0
	for id = range s.SetIDs() {
		n++
	}
	if n != 1 {
		t.Fatalf("the node knows %d sets", n)
	}
	return id
}
