package resolve

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	networkpolicy "sigs.k8s.io/network-policy-api/apis/v1beta1"

	"github.com/berthnet/berth/internal/policy"
	"github.com/berthnet/berth/internal/policy/compile"
)

// The policies of one namespace select a bounded number of pods of others. What exceeds that matches nothing, and comes into force,
// the oldest first, once there is room. What is in force stays, and other namespaces and administrators are not concerned.
func TestMembersOfANamespacesPoliciesAreBounded(t *testing.T) {
	r := NewLimited(50) // two selectors
	r.SetNamespace("big", map[string]string{"size": "big"})
	addPods := func(from, to int) {
		for i := from; i < to; i++ {
			r.SetPod(Pod{NamespacedName: types.NamespacedName{Namespace: "big", Name: fmt.Sprint(i)}, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})}})
		}
	}
	addPods(0, 10) // 20 members in each selector
	Loaded(r)
	server := netip.MustParseAddr("10.1.0.1")
	for _, namespace := range []string{"shop", "bank"} {
		r.SetNamespace(namespace, nil)
		r.SetPod(Pod{NamespacedName: types.NamespacedName{Namespace: namespace, Name: "server"}, Addrs: []netip.Addr{server}})
		server = server.Next()
	}
	// wide lets in all pods that lack some labels, in all namespaces.
	wide := func(namespace, name string, age int, keys ...string) compile.Compiled {
		p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, CreationTimestamp: metav1.NewTime(time.Unix(int64(1e9-age), 0))}}
		for _, key := range keys {
			p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{{
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"size": "big"}},
				PodSelector:       &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: key, Operator: metav1.LabelSelectorOpDoesNotExist}}},
			}}})
		}
		return compile.NetworkPolicy(p)
	}
	inForce := func(what string, want ...string) {
		t.Helper()
		var got []string
		for ref, c := range r.policies {
			for i, rule := range c.Policy.Rules[policy.Ingress] {
				if len(rule.Peers) > 0 {
					got = append(got, fmt.Sprintf("%s/%s %d", ref.Namespace, ref.Name, i))
				}
			}
			if problems := Refused(r, ref); (len(problems) > 0) != (len(r.budget.over[ref].Sets) > 0) || len(problems) > 0 && !strings.Contains(problems[0], "more than 50 pods and addresses of other namespaces") {
				t.Errorf("%s: problems of %s are %q", what, ref, problems)
			}
			if ref.Namespace == "shop" && !c.Policy.Isolates[policy.Ingress] {
				t.Errorf("%s: %s does not isolate its pods", what, ref)
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: rules in force are %q, want %q", what, got, want)
		}
	}
	r.SetPolicy(wide("shop", "one", 9, "a"))
	r.SetPolicy(wide("shop", "same", 8, "a"))
	r.SetPolicy(wide("shop", "two", 7, "b"))
	inForce("two selectors", "shop/one 0", "shop/same 0", "shop/two 0")
	r.SetPolicy(wide("shop", "young", 1, "d"))
	r.SetPolicy(wide("shop", "three", 6, "a", "c"))
	inForce("four selectors", "shop/one 0", "shop/same 0", "shop/three 0", "shop/two 0")
	if n := len(r.selections); n != 3 {
		t.Errorf("%d selections are in memory, want those of subjects and of two selectors", n)
	}
	r.SetPolicy(wide("bank", "four", 1, "c", "d"))
	admin := &networkpolicy.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "admin"}}
	for _, key := range []string{"e", "f", "g"} {
		admin.Spec.Ingress = append(admin.Spec.Ingress, networkpolicy.ClusterNetworkPolicyIngressRule{
			Action: networkpolicy.ClusterNetworkPolicyRuleActionDeny,
			From:   []networkpolicy.ClusterNetworkPolicyIngressPeer{{Namespaces: &metav1.LabelSelector{MatchLabels: map[string]string{"size": key}}}},
		})
	}
	r.SetPolicy(compile.ClusterNetworkPolicy(admin))
	others := []string{"/admin 0", "/admin 1", "/admin 2", "bank/four 0", "bank/four 1"}
	inForce("others", append(others, "shop/one 0", "shop/same 0", "shop/three 0", "shop/two 0")...)
	addPods(10, 30)
	r.SetPolicy(wide("shop", "two", 7, "b", "a"))
	inForce("a grown cluster", append(others, "shop/one 0", "shop/same 0", "shop/three 0", "shop/two 0", "shop/two 1")...)
	if problems := Refused(r, policy.Ref{Namespace: "shop", Name: "two"}); len(problems) > 0 {
		t.Errorf("problems of a policy that is in force are %q after the cluster grew", problems)
	}
	for i := 10; i < 30; i++ {
		r.DeletePod(types.NamespacedName{Namespace: "big", Name: fmt.Sprint(i)})
	}
	r.DeletePolicy(policy.Ref{Namespace: "shop", Name: "two"})
	inForce("room for one", append(others, "shop/one 0", "shop/same 0", "shop/three 0", "shop/three 1")...)
	for _, ref := range slices.Collect(maps.Keys(r.policies)) {
		r.DeletePolicy(ref)
	}
	if n := len(r.selections) + len(r.budget.over) + len(r.budget.inNamespace); n > 0 {
		t.Errorf("%d entries are left without policies", n)
	}
}

// Policies that select pods of their own namespace alone are not compared with all others there: eight times as many take
// about eight times as long, and not 64 times.
func TestManyPoliciesOfANamespaceAreReadSoon(t *testing.T) {
	few, many := readPolicies(1000), readPolicies(8000)
	if many > 30*few {
		t.Errorf("8000 policies took %s, and 1000 took %s", many, few)
	}
}

// readPolicies sets n policies of one namespace, and returns how long that took.
func readPolicies(n int) time.Duration {
	r := New()
	r.SetNamespace("shop", nil)
	began := time.Now()
	for i := range n {
		p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprint(i)}}
		p.Spec.PodSelector.MatchLabels = map[string]string{"app": fmt.Sprint(i)}
		p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprint(i + 1)}}}}}}
		r.SetPolicy(compile.NetworkPolicy(p))
	}
	return time.Since(began)
}
