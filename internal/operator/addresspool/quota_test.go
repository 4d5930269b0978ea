package addresspool

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness"
)

func TestShare(t *testing.T) {
	for _, tc := range []struct {
		name   string
		share  share
		have   possession
		reason string // empty: one more
	}{
		{"a node that starts", share{size: 32, maxPods: 110, open: true}, possession{}, ""},
		{"no pods need no second", share{size: 32, maxPods: 110, open: true}, possession{live: 1}, v1alpha1.ReasonNodeQuota},
		{"a pool that no pod of the node may use", share{size: 32, maxPods: 110}, possession{}, v1alpha1.ReasonNoPods},
		{"one pod: two addresses and a block", share{size: 1, pods: 1, maxPods: 110}, possession{live: 2}, ""},
		{"one pod has that", share{size: 1, pods: 1, maxPods: 110}, possession{live: 3}, v1alpha1.ReasonNodeQuota},
		{"a full node", share{size: 32, pods: 110, maxPods: 110}, possession{live: 7}, ""},
		{"a full node has enough", share{size: 32, pods: 110, maxPods: 110}, possession{live: 8}, v1alpha1.ReasonNodeQuota},
		{"more pods than the node can have", share{size: 1, pods: 5000, maxPods: 10}, possession{live: 21}, v1alpha1.ReasonNodeQuota},
		{"draining ones give nothing", share{size: 32, pods: 20, maxPods: 110}, possession{live: 2, draining: 3}, ""},
		{"draining all that one gets", share{size: 32, pods: 20, maxPods: 110}, possession{draining: 6}, v1alpha1.ReasonNodeQuota},
		{"the pool's limit", share{size: 1, pods: 50, maxPods: 110, limit: 2}, possession{live: 1, draining: 1}, v1alpha1.ReasonNodeQuota},
		{"below the pool's limit", share{size: 1, pods: 50, maxPods: 110, limit: 2}, possession{live: 1}, ""},
		{"a huge block", share{size: 1 << 16, pods: 110, maxPods: 110}, possession{live: 2}, v1alpha1.ReasonNodeQuota},
	} {
		why := tc.share.refuse("n", "p", tc.have)
		got := ""
		if why != nil {
			got = why.reason
		}
		if got != tc.reason {
			t.Errorf("%s: %+v with %+v: %q, want %q", tc.name, tc.share, tc.have, got, tc.reason)
		}
	}
}

func TestUses(t *testing.T) {
	p := &v1alpha1.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: "public"}, Spec: v1alpha1.AddressPoolSpec{PodNamespaces: []string{"shop"}}}
	for _, tc := range []struct {
		namespace, ofNamespace, ofPod string
		want                          bool
	}{
		{"team", "", "", false},
		{"team", "public", "", true},
		{"team", "public", "public", true},
		{"team", "public", "inner", false}, // gets none
		{"team", "", "public", false},      // may not
		{"shop", "", "public", true},
		{"shop", "", "", false},
	} {
		if got := uses(p, tc.namespace, tc.ofNamespace, tc.ofPod); got != tc.want {
			t.Errorf("%+v: %v", tc, got)
		}
	}
}

// makeNamespace makes one whose pods get their addresses from a pool.
func makeNamespace(t *testing.T, name, pool string) {
	t.Helper()
	o := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{v1alpha1.AnnotationPool: pool}}}
	harness.OK(t, client.IgnoreAlreadyExists(harness.KubeClient(t).Create(t.Context(), o)))
}

// bind makes a pod that is bound to a node.
func bind(t *testing.T, namespace, name, node string) *corev1.Pod {
	t.Helper()
	no := false
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.PodSpec{
		NodeName: node, AutomountServiceAccountToken: &no, Containers: []corev1.Container{{Name: "a", Image: "a"}},
		Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
	}}
	harness.Eventually(t, limit, "a pod", func() error { return harness.KubeClient(t).Create(t.Context(), p) })
	return p
}

// A block that comes back is kept for the request that has waited longest. If the
// pods of that one's node are gone by then, the next has it.
func TestRefusedRequestKeepsNoBlock(t *testing.T) {
	harness.KubeClean(t)
	for _, node := range []string{"holder", "leaver", "needy"} {
		makeNode(t, node)
	}
	makeNamespace(t, "market", "small")
	bind(t, "market", "front", "holder")
	gone := bind(t, "market", "gone", "leaver")
	bind(t, "market", "want", "needy")
	makePool(t, "small", 0, "10.4.0.0/31")
	start(t, Options{MaxPods: 110})
	held := given(t, "h1", "holder", "small")
	given(t, "h2", "holder", "small")
	for _, w := range [][2]string{{"w1", "leaver"}, {"w2", "needy"}} {
		ask(t, w[0], w[1], "small")
		failed(t, w[0], v1alpha1.ReasonPoolExhausted, "small")
	}
	harness.OK(t, harness.KubeClient(t).Delete(t.Context(), gone, client.GracePeriodSeconds(0)))
	giveBack(t, held.Name)
	failed(t, "w1", v1alpha1.ReasonNoPods, "leaver")
	answered(t, "w2")
}

// Who has stolen one node's token asks for all there is: 150 blocks of a pool that
// any pod may use, and of one that is reserved for a namespace of which the node
// has no pod. He gets what the node's pods can use, and a pod's node its block.
func TestTokenOfANodeTakesWhatItsPodsCanUse(t *testing.T) {
	harness.KubeClean(t)
	admin := harness.KubeClient(t)
	makeNode(t, "thief")
	makeNode(t, "honest")
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "thief"}}
	harness.OK(t, admin.Get(t.Context(), client.ObjectKeyFromObject(n), n))
	n.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("10")}
	harness.OK(t, admin.Status().Update(t.Context(), n))
	makeNamespace(t, "shop", "reserved")
	for i := range 3 {
		bind(t, "default", fmt.Sprint("pod", i), "thief")
	}
	bind(t, "shop", "front", "honest")
	makePool(t, v1alpha1.DefaultPool, 0, "10.2.0.0/22")
	makePool(t, "reserved", 0, "10.3.0.0/24")
	var mu sync.Mutex // guards reasons
	reasons := map[string]int{}
	start(t, Options{MaxPods: 110, RequestRefused: func(reason string) {
		mu.Lock()
		defer mu.Unlock()
		reasons[reason]++
	}})
	given(t, "first", "honest", "reserved")

	token, err := harness.ControlPlane.NodeToken(t.Context(), types.NamespacedName{Namespace: "kube-system", Name: "berthd"}, "thief")
	harness.OK(t, err)
	thief := harness.KubeClientFor(t, harness.ControlPlane.ConfigWithToken(token))
	for _, pool := range []string{v1alpha1.DefaultPool, "reserved"} {
		for i := range 150 {
			r := &v1alpha1.BlockRequest{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%03d", pool, i)}, Spec: v1alpha1.BlockRequestSpec{NodeName: "thief", PoolName: pool},
			}
			harness.Eventually(t, limit, "a request", func() error { return thief.Create(t.Context(), r) })
		}
	}
	// Three pods and berthd's own, which has the host's network and does not count:
	// six addresses and one before it is needed.
	eventually(t, "every request has an answer", func(c client.Client) error {
		list := &v1alpha1.BlockRequestList{}
		if err := c.List(t.Context(), list); err != nil {
			return err
		}
		open, failures := 0, map[string]int{}
		for _, r := range list.Items {
			f := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionFailed)
			switch {
			case meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionComplete):
			case f == nil:
				return fmt.Errorf("%s has no answer", r.Name)
			default:
				open++
				failures[r.Spec.PoolName+" "+f.Reason]++
				if f.Status != metav1.ConditionTrue || !strings.Contains(f.Message, "node thief has") {
					return fmt.Errorf("%s: %+v", r.Name, f)
				}
			}
		}
		if failures["default "+v1alpha1.ReasonNodeQuota] == 0 || failures["reserved "+v1alpha1.ReasonNoPods] == 0 || failures["default "+v1alpha1.ReasonTooManyRequests] == 0 {
			return fmt.Errorf("failed: %v", failures)
		}
		if open > maxKept {
			return fmt.Errorf("%d open requests are kept, want %d at most", open, maxKept)
		}
		return nil
	})
	count := func() map[string]int {
		have := map[string]int{}
		blocks := &v1alpha1.AddressBlockList{}
		harness.OK(t, admin.List(t.Context(), blocks))
		for _, b := range blocks.Items {
			have[b.NodeName+" "+b.PoolName]++
		}
		return have
	}
	if have := count(); have["thief default"] != 7 || have["thief reserved"] != 0 || have["honest reserved"] != 1 {
		t.Errorf("blocks %v, want 7 of default and none of reserved for the thief", have)
	}
	told(t, v1alpha1.DefaultPool, v1alpha1.ReasonNodeQuota)
	told(t, "reserved", v1alpha1.ReasonNoPods)
	mu.Lock()
	for _, reason := range []string{v1alpha1.ReasonNodeQuota, v1alpha1.ReasonNoPods, v1alpha1.ReasonTooManyRequests} {
		if reasons[reason] == 0 {
			t.Errorf("counted %v, want %s among them", reasons, reason)
		}
	}
	mu.Unlock()

	// A namespace that is given the pool, and a pod that comes, change that.
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:"reserved"}}}`, v1alpha1.AnnotationPool)
	none := `{"metadata":{"annotations":{"berth.dev/pool":null}}}`
	toDefault := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	harness.OK(t, admin.Patch(t.Context(), toDefault.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch))))
	eventually(t, "blocks of the pool that is given now", func(client.Client) error {
		if have := count(); have["thief reserved"] != 7 {
			return fmt.Errorf("blocks %v", have)
		}
		return nil
	})
	harness.OK(t, admin.Patch(t.Context(), toDefault.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(none))))
}
