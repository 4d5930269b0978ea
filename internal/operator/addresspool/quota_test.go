package addresspool

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
	"github.com/berthnet/berth/test/harness/sourcenode"
)

func TestShare(t *testing.T) {
	for _, tc := range []struct {
		name   string
		share  share
		have   possession
		reason string // of the refusal; empty if another block is allowed
	}{
		{"starting node", share{size: 32, maxPods: 110, open: true}, possession{}, ""},
		{"no second block without pods", share{size: 32, maxPods: 110, open: true}, possession{live: 1}, v1alpha1.ReasonNodeQuota},
		{"pool that no pod of the node may use", share{size: 32, maxPods: 110}, possession{}, v1alpha1.ReasonNoPods},
		{"one pod needs two addresses and a reserve", share{size: 1, pods: 1, maxPods: 110}, possession{live: 2}, ""},
		{"quota of one pod reached", share{size: 1, pods: 1, maxPods: 110}, possession{live: 3}, v1alpha1.ReasonNodeQuota},
		{"full node", share{size: 32, pods: 110, maxPods: 110}, possession{live: 7}, ""},
		{"quota of a full node reached", share{size: 32, pods: 110, maxPods: 110}, possession{live: 8}, v1alpha1.ReasonNodeQuota},
		{"more pods than the node can run", share{size: 1, pods: 5000, maxPods: 10}, possession{live: 21}, v1alpha1.ReasonNodeQuota},
		{"draining blocks do not count", share{size: 32, pods: 20, maxPods: 110}, possession{live: 2, draining: 3}, ""},
		{"node that drains every block", share{size: 32, pods: 20, maxPods: 110}, possession{draining: 6}, v1alpha1.ReasonNodeQuota},
		{"limit of the pool", share{size: 1, pods: 50, maxPods: 110, limit: 2}, possession{live: 1, draining: 1}, v1alpha1.ReasonNodeQuota},
		{"below the limit of the pool", share{size: 1, pods: 50, maxPods: 110, limit: 2}, possession{live: 1}, ""},
		{"huge block", share{size: 1 << 16, pods: 110, maxPods: 110}, possession{live: 2}, v1alpha1.ReasonNodeQuota},
	} {
		why := tc.share.refuse("n", "p", tc.have)
		got := ""
		if why != nil {
			got = why.reason
		}
		if got != tc.reason {
			t.Errorf("%s: %+v.refuse(%+v) = %q, want %q", tc.name, tc.share, tc.have, got, tc.reason)
		}
	}
}

func TestAddresses(t *testing.T) {
	p := &v1alpha1.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: "public"}, Spec: v1alpha1.AddressPoolSpec{PodNamespaces: []string{"shop"}}}
	for _, tc := range []struct {
		namespace, ofNamespace, ofPod, networks string
		want                                    int
	}{
		{"team", "", "", "", 0},
		{"team", "public", "", "", 1},
		{"team", "public", "public", "", 1},
		{"team", "public", "inner", "", 0}, // uses another pool
		{"team", "", "public", "", 0},      // namespace not allowed
		{"shop", "", "public", "", 1},
		{"shop", "", "", "", 0},
		{"shop", "", "", "storage", 1}, // for its second interface
		{"shop", "", "public", "storage, backup@net2", 3},
		{"shop", "", "", `[{"name": "storage"}, {"name": "storage"}]`, 2},
		{"shop", "", "", `[{"name": "storage"`, 0},
		{"shop", "", "", strings.Repeat("a,", 1000), 8},
		{"team", "", "", "storage", 0},       // namespace not allowed
		{"team", "public", "", "storage", 2}, // the network may use the namespace's pool
	} {
		ofPod := map[string]string{annotationNetworks: tc.networks}
		if tc.ofPod != "" {
			ofPod[v1alpha1.AnnotationPool] = tc.ofPod
		}
		if got := addresses(p, tc.namespace, tc.ofNamespace, ofPod); got != tc.want {
			t.Errorf("addresses(%+v) = %v", tc, got)
		}
	}
}

// makeNamespace creates a namespace whose pods get their addresses from a pool.
func makeNamespace(t *testing.T, name, pool string) {
	t.Helper()
	o := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{v1alpha1.AnnotationPool: pool}}}
	harness.OK(t, client.IgnoreAlreadyExists(harness.KubeClient(t).Create(t.Context(), o)))
}

// bind creates a pod that is bound to a node.
func bind(t *testing.T, namespace, name, node string, changes ...func(*corev1.Pod)) *corev1.Pod {
	t.Helper()
	no := false
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.PodSpec{
		NodeName: node, AutomountServiceAccountToken: &no, Containers: []corev1.Container{{Name: "a", Image: "a"}},
		Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
	}}
	for _, change := range changes {
		change(p)
	}
	harness.Eventually(t, controllers.Limit, "pod created", func() error { return harness.KubeClient(t).Create(t.Context(), p) })
	return p
}

// thief is a client with the token of the daemon of a node called thief.
type thief struct {
	t *testing.T
	client.Client
}

// newThief creates the node thief, with the given number of allocatable pods.
func newThief(t *testing.T, pods string) thief {
	t.Helper()
	makeNode(t, "thief")
	controllers.MergeStatus(t, harness.KubeClient(t), nodeNamed("thief"), `{"status":{"allocatable":{"pods":%q}}}`, pods)
	return thief{t, harness.KubeClientFor(t, sourcenode.Config(t, "berthd", "thief"))}
}

// asks creates requests for a pool, numbered in the half-open range [from, to).
func (c thief) asks(pool string, from, to int) {
	c.t.Helper()
	for i := from; i < to; i++ {
		r := requestNamed(fmt.Sprintf("%s-%03d", pool, i))
		r.Spec = v1alpha1.BlockRequestSpec{NodeName: "thief", PoolName: pool}
		harness.Eventually(c.t, controllers.Limit, "request created", func() error { return c.Create(c.t.Context(), r) })
	}
}

// A released block is reserved for the request that has waited longest. If that node's pods are
// gone by then, the next request gets the block.
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

// has waits until every request for a pool is answered, and checks the number of the node's blocks
// and the reason why it gets no more.
func (c thief) has(pool string, want int, reason string) {
	c.t.Helper()
	eventually(c.t, fmt.Sprintf("%d blocks of %s", want, pool), func(admin client.Client) error {
		requests := &v1alpha1.BlockRequestList{}
		if err := admin.List(c.t.Context(), requests); err != nil {
			return err
		}
		refused, open := false, 0
		for _, r := range requests.Items {
			if meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionComplete) {
				continue
			}
			open++
			f := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionFailed)
			switch {
			case r.Spec.PoolName != pool:
			case f == nil:
				return fmt.Errorf("request %s is not answered", r.Name)
			case f.Status != metav1.ConditionTrue || !strings.Contains(f.Message, "node thief has"):
				return fmt.Errorf("condition Failed of request %s = %+v", r.Name, f)
			default:
				refused = refused || f.Reason == reason
			}
		}
		if open > maxKept {
			return fmt.Errorf("%d open requests are kept, want at most %d", open, maxKept)
		}
		if have := blocksOf(c.t, "thief", pool); have != want || !refused {
			return fmt.Errorf("%d blocks, refused with reason %s: %v", have, reason, refused)
		}
		return nil
	})
}

func blocksOf(t *testing.T, node, pool string) (n int) {
	t.Helper()
	blocks := &v1alpha1.AddressBlockList{}
	harness.OK(t, harness.KubeClient(t).List(t.Context(), blocks))
	for _, b := range blocks.Items {
		if b.NodeName == node && b.PoolName == pool {
			n++
		}
	}
	return n
}

// An attacker with one node's token who may create pods binds them to the node by hand: more than
// it can run, some with hostNetwork, one only for a moment. He requests all blocks of a pool open
// to every pod, of a pool reserved for a namespace without pods on the node, and of the pool of
// the short-lived pod. The node gets at most the quota of a full node, and another node still gets
// its block.
func TestStolenNodeTokenIsLimitedByQuota(t *testing.T) {
	harness.KubeClean(t)
	admin := harness.KubeClient(t)
	thief := newThief(t, "5")
	makeNode(t, "honest")
	makeNamespace(t, "shop", "reserved")
	makeNamespace(t, "brief", "passing")
	makeNamespace(t, "host", "reserved")
	bind(t, "shop", "front", "honest")
	for i := range 20 {
		p := bind(t, "default", fmt.Sprint("pod-", i), "thief")
		p.Status.Phase = []corev1.PodPhase{corev1.PodPending, corev1.PodFailed, corev1.PodSucceeded}[i%3]
		harness.OK(t, admin.Status().Update(t.Context(), p))
	}
	for i := range 5 {
		bind(t, "host", fmt.Sprint("pod-", i), "thief", func(p *corev1.Pod) { p.Spec.HostNetwork = true })
	}
	passing := bind(t, "brief", "pod", "thief")
	for i, name := range []string{v1alpha1.DefaultPool, "reserved", "passing"} {
		makePool(t, name, 0, fmt.Sprintf("10.%d.0.0/24", 2+i))
	}
	var reasons sync.Map // reasons reported to RequestRefused
	start(t, Options{MaxPods: 110, RequestRefused: func(reason string) { reasons.Store(reason, true) }})
	given(t, "first", "honest", "reserved")

	thief.asks("passing", 0, 5) // two addresses and one in reserve
	thief.has("passing", 3, v1alpha1.ReasonNodeQuota)
	harness.OK(t, admin.Delete(t.Context(), passing, client.GracePeriodSeconds(0)))
	thief.asks("passing", 5, 8)
	thief.has("passing", 3, v1alpha1.ReasonNoPods)
	thief.asks(v1alpha1.DefaultPool, 0, 150)
	thief.asks("reserved", 0, 150)
	thief.has(v1alpha1.DefaultPool, 11, v1alpha1.ReasonNodeQuota) // the quota of five pods
	thief.has(v1alpha1.DefaultPool, 11, v1alpha1.ReasonTooManyRequests)
	thief.has("reserved", 0, v1alpha1.ReasonNoPods)
	harness.OK(t, controllers.Same("blocks of the honest node", blocksOf(t, "honest", "reserved"), 1))
	controllers.AwaitEvent(t, poolNamed(v1alpha1.DefaultPool), v1alpha1.ReasonNodeQuota)
	controllers.AwaitEvent(t, poolNamed("reserved"), v1alpha1.ReasonNoPods)
	for _, reason := range []string{v1alpha1.ReasonNodeQuota, v1alpha1.ReasonNoPods, v1alpha1.ReasonTooManyRequests} {
		if _, counted := reasons.Load(reason); !counted {
			t.Errorf("RequestRefused was not called with reason %s", reason)
		}
	}

	// Assigning the pool to a namespace raises the quota.
	toDefault := controllers.Named[corev1.Namespace]("default")
	annotate := func(pool string) {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, v1alpha1.AnnotationPool, pool)
		harness.OK(t, admin.Patch(context.Background(), toDefault.DeepCopy(), client.RawPatch(types.MergePatchType, patch)))
	}
	annotate(`"reserved"`)
	t.Cleanup(func() { annotate("null") })
	thief.has("reserved", 11, v1alpha1.ReasonNodeQuota)
}
