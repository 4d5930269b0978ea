package addresspool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/transport"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ipam/block"
	"github.com/berthnet/berth/internal/operator/queue"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

// Blocks are allocated in index order across all subnets, with the same index in both families,
// and a released block is reused last. Exhaustion is reported, and ends when a block is released
// or a subnet appended.
func TestBlocksInOrder(t *testing.T) {
	harness.KubeClean(t)
	makeNode(t, "n")
	start(t, Options{})
	makePool(t, "p", 1, "10.2.0.0/29+fd02::200/125", "10.3.0.0/30+fd02::300/126")
	for i, want := range []string{
		"10.2.0.0/31 fd02::200/127", "10.2.0.2/31 fd02::202/127", "10.2.0.4/31 fd02::204/127",
		"10.2.0.6/31 fd02::206/127", "10.3.0.0/31 fd02::300/127",
	} {
		b := given(t, fmt.Sprintf("r%d", i), "n", "p")
		if got := b.IPv4 + " " + b.IPv6; b.Name != fmt.Sprintf("p-%d", i) || got != want || b.Index != int64(i) {
			t.Errorf("block %s = %s, want p-%d = %s", b.Name, got, i, want)
		}
		if len(b.OwnerReferences) != 1 || !*b.OwnerReferences[0].Controller || !*b.OwnerReferences[0].BlockOwnerDeletion ||
			b.Labels[v1alpha1.LabelPool] != "p" || b.Labels[v1alpha1.LabelNode] != "n" || !slices.Equal(b.Finalizers, []string{v1alpha1.FinalizerBlock}) {
			t.Errorf("block metadata = %+v, want pool as controller, labels and finalizer", b.ObjectMeta)
		}
	}
	poolIs(t, "p", "counts", counted(6, 5))
	giveBack(t, "p-1")
	harness.OK(t, controllers.Same("the block after p-1 was given back", given(t, "r5", "n", "p").Name, "p-5"))
	harness.OK(t, controllers.Same("the block after that", given(t, "r6", "n", "p").Name, "p-1"))
	poolIs(t, "p", "Exhausted", condition(v1alpha1.ConditionExhausted, metav1.ConditionTrue, v1alpha1.ReasonPoolExhausted))
	ask(t, "r7", "n", "p")
	failed(t, "r7", v1alpha1.ReasonPoolExhausted, "all 6 blocks")
	controllers.AwaitEvent(t, poolNamed("p"), v1alpha1.ReasonPoolExhausted)
	giveBack(t, "p-3")
	harness.OK(t, controllers.Same("the block of r7", answered(t, "r7").Name, "p-3"))
	ask(t, "r8", "n", "p")
	failed(t, "r8", v1alpha1.ReasonPoolExhausted, "all 6 blocks")
	c := harness.KubeClient(t)
	harness.OK(t, c.Patch(t.Context(), poolNamed("p"), client.RawPatch(types.JSONPatchType,
		[]byte(`[{"op":"add","path":"/spec/subnets/-","value":{"ipv4":"10.4.0.0/31","ipv6":"fd02::400/127"}}]`))))
	if b := answered(t, "r8"); b.Name != "p-6" || b.IPv4 != "10.4.0.0/31" {
		t.Errorf("block of r8 = %s %s, want p-6 10.4.0.0/31", b.Name, b.IPv4)
	}
	poolIs(t, "p", "counts", counted(7, 7))
	poolIs(t, "p", "addresses", controllers.If(func(p *v1alpha1.AddressPool) bool {
		return p.Status.Addresses == (v1alpha1.PoolCounts{Total: 14, Allocated: 14}) && p.Status.AcceptedSubnets == 3
	}))
	ask(t, "r9", "n", "nosuch")
	failed(t, "r9", v1alpha1.ReasonPoolNotFound, "nosuch")
	makePool(t, "nosuch", 0, "10.9.0.0/32")
	answered(t, "r9")
}

// A new operator continues where the old one stopped: released blocks are still reused last, and
// allocated blocks keep their owners.
func TestNextOperatorContinues(t *testing.T) {
	harness.KubeClean(t)
	makeNode(t, "n")
	_, end := start(t, Options{})
	makePool(t, "p", 0, "10.2.0.0/30")
	for i := range 2 {
		given(t, fmt.Sprintf("r%d", i), "n", "p")
	}
	giveBack(t, "p-0")
	poolIs(t, "p", "counts", func(p *v1alpha1.AddressPool) error {
		if p.Status.NextIndex != 2 {
			return fmt.Errorf("status.nextIndex = %d, want 2", p.Status.NextIndex)
		}
		return counted(4, 1)(p)
	})
	end()
	start(t, Options{})
	for i, want := range []string{"p-2", "p-3", "p-0"} {
		harness.OK(t, controllers.Same("name of the block", given(t, fmt.Sprintf("again-%d", i), "n", "p").Name, want))
	}
}

// Lost replies and lost requests neither allocate a block twice nor leak one, with a hundred
// concurrent requests and an operator that is replaced halfway. Only calls in flight at the time
// of the replacement may leave additional blocks.
func TestLostReplies(t *testing.T) {
	harness.KubeClean(t)
	makeNode(t, "n")
	makePool(t, "p", 0, "10.2.0.0/24")
	var n atomic.Int64
	through := harness.Through(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		<-time.After(rand.N(50 * time.Millisecond)) // injected latency, not a wait for a condition
		write := r.Method != http.MethodGet && strings.Contains(r.URL.Path, "/berth.dev/")
		i := n.Add(1)
		if write && i%5 == 0 {
			return nil, errors.New("request dropped by the test")
		}
		reply, err := next.RoundTrip(r)
		if err == nil && write && i%3 == 0 {
			_ = reply.Body.Close()
			return nil, errors.New("reply dropped by the test")
		}
		return reply, err
	})
	_, end := start(t, Options{}, through)
	const requests = 100
	var wg sync.WaitGroup
	for i := range requests {
		wg.Go(func() { ask(t, fmt.Sprintf("r%d", i), "n", "p") })
	}
	wg.Wait()
	answered(t, "r0")
	end()
	start(t, Options{}, through)
	names := map[string]bool{}
	for i := range requests {
		names[answered(t, fmt.Sprintf("r%d", i)).Name] = true
	}
	harness.OK(t, controllers.Same("blocks", len(names), requests))
	returnLate(t, "p", 256, names)
}

// If two overlapping pools are created at the same moment, one is accepted, even with two leading
// operators. The other pool is accepted when the first is deleted.
func TestOverlapRace(t *testing.T) {
	harness.KubeClean(t)
	makeNode(t, "n")
	start(t, Options{})
	start(t, Options{})
	// Without the policy, which rejects most such pairs at admission.
	c := harness.KubeClient(t)
	withoutPolicy(t, "berth-pools-do-not-overlap")
	for i := range 5 {
		pair := []string{fmt.Sprintf("a%d", i), fmt.Sprintf("b%d", i)}
		for k, name := range pair {
			makeOverlapping(t, name, 2, fmt.Sprintf("10.%d.0.0/%d", i, 24+k))
		}
		var winner, loser string
		eventually(t, "one of two overlapping pools accepted", func(c client.Client) error {
			list := &v1alpha1.AddressPoolList{}
			if err := c.List(t.Context(), list); err != nil {
				return err
			}
			winner, loser = "", ""
			for _, p := range list.Items {
				switch {
				case !slices.Contains(pair, p.Name):
				case condition(v1alpha1.ConditionReady, metav1.ConditionTrue, "Ready")(&p) == nil && p.Status.AcceptedSubnets == 1:
					winner += p.Name
				case condition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonPoolOverlaps)(&p) == nil && p.Status.AcceptedSubnets == 0:
					loser += p.Name
				}
			}
			if !slices.Contains(pair, winner) || !slices.Contains(pair, loser) {
				return fmt.Errorf("accepted %q, refused %q", winner, loser)
			}
			return nil
		})
		ask(t, "r-"+loser, "n", loser)
		failed(t, "r-"+loser, v1alpha1.ReasonPoolOverlaps, winner)
		harness.OK(t, c.Delete(t.Context(), poolNamed(winner)))
		poolIs(t, loser, "accepted after the other pool is deleted", condition(v1alpha1.ConditionReady, metav1.ConditionTrue, "Ready"))
		answered(t, "r-"+loser)
	}
}

// policyBinding returns an empty ValidatingAdmissionPolicyBinding of this name.
func policyBinding(t *testing.T, name string) client.Object {
	t.Helper()
	var o metav1.PartialObjectMetadata
	harness.OK(t, yaml.Unmarshal([]byte("apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingAdmissionPolicyBinding\nmetadata: {name: "+name+"}"), &o))
	return &o
}

// A pool being deleted allocates no blocks. Its blocks are deleted, keep their addresses until
// their nodes have drained them, and the pool disappears after the last one.
func TestPoolDeletion(t *testing.T) {
	harness.KubeClean(t)
	makeNode(t, "n")
	start(t, Options{})
	makePool(t, "p", 0, "10.2.0.0/30")
	given(t, "r0", "n", "p")
	c := harness.KubeClient(t)
	harness.OK(t, c.Delete(t.Context(), poolNamed("p")))
	awaitDeletion(t, "p-0")
	ask(t, "r1", "n", "p")
	failed(t, "r1", v1alpha1.ReasonPoolDeleted, "p")
	poolIs(t, "p", "reported as deleted", condition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonPoolDeleted))
	controllers.DropFinalizers(t, blockNamed("p-0"))
	controllers.AwaitGone(t, poolNamed("p"))
	failed(t, "r1", v1alpha1.ReasonPoolNotFound, "p")

	// Again, with the finalizer removed by hand: the block is drained nevertheless.
	makePool(t, "p", 0, "10.2.0.0/30")
	answered(t, "r1")
	controllers.DropFinalizers(t, poolNamed("p"))
	harness.OK(t, client.IgnoreNotFound(c.Delete(t.Context(), poolNamed("p"))))
	awaitDeletion(t, "p-0")
}

// Blocks and requests of a missing Node are released unless its daemon keeps renewing its claim.
// Those of a Node that is down are released only by policy, and only once the node is fenced.
func TestMissingNodesAreReleased(t *testing.T) {
	harness.KubeClean(t)
	const grace = 2 * time.Second
	now := clock.NewFake(time.Now()) // so that no claim lapses before the test makes one
	o, _ := start(t, Options{Clock: now, Grace: grace, DownAfter: time.Second})
	makePool(t, "p", 0, "10.2.0.0/28")
	c := harness.KubeClient(t)
	blocks := map[string]string{}
	for _, n := range []string{"gone", "claims", "down", "fenced"} {
		makeNode(t, n)
		blocks[n] = given(t, "r-"+n, n, "p").Name
	}
	claim := func() {
		controllers.MergeStatus(t, c, blockNamed(blocks["claims"]), `{"status":{"renewTime":%q}}`, now.Now().UTC().Format(metav1.RFC3339Micro))
	}
	claim()
	for _, n := range []string{"gone", "claims"} {
		harness.OK(t, c.Delete(t.Context(), nodeNamed(n)))
	}
	for n, taint := range map[string]string{"down": corev1.TaintNodeUnreachable, "fenced": corev1.TaintNodeOutOfService} {
		k := controllers.Get[corev1.Node](t, client.ObjectKey{Name: n})
		k.Spec.Taints = []corev1.Taint{{Key: taint, Effect: corev1.TaintEffectNoExecute}}
		harness.OK(t, c.Update(t.Context(), k))
		k.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, LastTransitionTime: metav1.NewTime(now.Now())}}
		harness.OK(t, c.Status().Update(t.Context(), k))
	}
	noticed(t, o, "gone", func(s *liveness) bool { return true })
	noticed(t, o, "claims", func(s *liveness) bool { return true })
	for range 2 { // after the second step, the grace period of silent nodes has passed
		now.Advance(grace * 3 / 4)
		claim()
		noticed(t, o, "claims", func(s *liveness) bool { return s.alive.Equal(now.Now()) })
	}
	controllers.AwaitValue(t, "remaining blocks", func() []string { return blocksNow(t) }, slices.Sorted(slices.Values([]string{blocks["claims"], blocks["down"]})))
	if err := c.Get(t.Context(), client.ObjectKey{Name: "r-gone"}, &v1alpha1.BlockRequest{}); !apierrors.IsNotFound(err) {
		t.Errorf("get request of a deleted node: %v, want not found", err)
	}
	now.Advance(grace)
	controllers.AwaitValue(t, "blocks after the claim has lapsed", func() []string { return blocksNow(t) }, []string{blocks["down"]})
	poolIs(t, "p", "counts", func(p *v1alpha1.AddressPool) error {
		now.Advance(reportEvery)
		return counted(16, 1)(p)
	})
}

// noticed waits until the operator's liveness state of a node without a Node satisfies what.
func noticed(t *testing.T, o *Controller, node string, what func(*liveness) bool) {
	t.Helper()
	harness.Eventually(t, controllers.Limit, "liveness of node "+node, func() error {
		o.nodes.mu.Lock()
		defer o.nodes.mu.Unlock()
		if s := o.nodes.liveness[node]; s == nil || !what(s) {
			return fmt.Errorf("liveness = %+v", s)
		}
		return nil
	})
}

// A node's name may be longer than a label value.
func TestLongNodeName(t *testing.T) {
	harness.KubeClean(t)
	name := strings.Repeat("node.", 40) + "example"
	makeNode(t, name)
	start(t, Options{})
	makePool(t, "p", 0, "10.2.0.0/32")
	b := given(t, "r", name, "p")
	if l := b.Labels[v1alpha1.LabelNode]; b.NodeName != name || l != v1alpha1.NodeLabel(name) || len(l) > 63 {
		t.Errorf("block = %+v, want node name %s and its label", b, name)
	}
	list := &v1alpha1.AddressBlockList{}
	harness.OK(t, harness.KubeClient(t).List(t.Context(), list, client.MatchingFields{"nodeName": name}))
	if len(list.Items) != 1 {
		t.Errorf("found %d blocks by node name, want 1", len(list.Items))
	}
}

// A request of a node that never existed is deleted.
func TestOrphanedRequest(t *testing.T) {
	harness.KubeClean(t)
	start(t, Options{Grace: time.Second})
	ask(t, "orphan", "nobody", "p")
	controllers.AwaitGone(t, requestNamed("orphan"))
}

// A request that is deleted before its answer is written does not count. With a stale cache, the operator may answer a request
// again whose node has read the first answer and deleted it; it must count once.
func TestVanishedRequestsDoNotCount(t *testing.T) {
	harness.KubeClean(t)
	makeNode(t, "n")
	makePool(t, "p", 0, "10.2.0.0/24")
	var served atomic.Int64
	c := harness.KubeClient(t)
	_, end := start(t, Options{RequestServed: func(time.Duration) { served.Add(1) }}, before(func(r *http.Request) {
		if r.Method != http.MethodPatch || !strings.HasSuffix(r.URL.Path, "/blockrequests/goes/status") {
			return
		}
		if err := client.IgnoreNotFound(c.Delete(context.Background(), requestNamed("goes"))); err != nil {
			t.Error(err)
		}
	}))
	ask(t, "goes", "n", "p")
	controllers.AwaitGone(t, requestNamed("goes"))
	given(t, "stays", "n", "p")
	end() // waits for the reconciles in progress
	harness.OK(t, controllers.Same("requests answered", served.Load(), 1))
}

// before calls do before each request that an operator sends.
func before(do func(*http.Request)) transport.WrapperFunc {
	return harness.Through(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		do(r)
		return next.RoundTrip(r)
	})
}

// trailing is a client whose cache has no blocks yet.
type trailing struct{ client.Client }

func (trailing) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

// pages is a paginated list as an API server sends it.
type pages struct {
	client.Reader
	json []string
}

func (p *pages) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	page := p.json[0]
	p.json = p.json[1:]
	return json.Unmarshal([]byte(page), list)
}

// A block has no fields left over from the block at the same position of the previous page.
func TestPagesShareNoFields(t *testing.T) {
	a := &api{live: &pages{json: []string{
		`{"metadata":{"continue":"c"},"items":[{"metadata":{"name":"p-0","deletionTimestamp":"2026-01-01T00:00:00Z"},"ipv4":"10.2.0.0/32","ipv6":"fd02::/128",
			"requestUID":"u","withheld":[{"cidr":"10.2.0.0/32","owner":"Node n"}]}]}`,
		`{"metadata":{"continue":""},"items":[{"metadata":{"name":"p-1"},"ipv4":"10.2.0.1/32"}]}`,
	}}}
	var names []string
	for b, err := range a.allBlocks(t.Context()) {
		harness.OK(t, err)
		if names = append(names, b.Name); b.Name == "p-1" && (b.IPv6 != "" || b.RequestUID != "" || b.DeletionTimestamp != nil || b.Withheld != nil) {
			t.Errorf("block p-1 = %+v, has fields of p-0", b)
		}
	}
	if !slices.Equal(names, []string{"p-0", "p-1"}) {
		t.Errorf("blocks = %v, want [p-0 p-1]", names)
	}
}

// A leader whose cache lacks its predecessor's last blocks answers the requests with these blocks
// and creates no second ones.
func TestStaleCacheOfNewLeader(t *testing.T) {
	harness.KubeClean(t)
	makeNode(t, "n")
	_, end := start(t, Options{})
	makePool(t, "p", 0, "10.2.0.0/28")
	given(t, "another", "n", "p")
	end()
	ask(t, "untold", "n", "p")
	r := controllers.Get[v1alpha1.BlockRequest](t, client.ObjectKey{Name: "untold"})
	p := controllers.Get[v1alpha1.AddressPool](t, client.ObjectKey{Name: "p"})
	late := newBlock(r, offer{index: 5, piece: pieceOf(t, "10.2.0.5/32")})
	late.OwnerReferences[0].UID = p.UID
	harness.OK(t, harness.KubeClientFor(t, operatorConfig(t)).Create(t.Context(), late))

	c := newController(&api{
		cached: trailing{harness.KubeClientFor(t, operatorConfig(t))}, live: harness.KubeClient(t), clock: clock.Real{}, log: controllers.Logger(t.Output()),
	}, Options{})
	harness.OK(t, c.inherited.run(t.Context()))
	l, err := layout(p, 1)
	harness.OK(t, err)
	c.allocator.setPool(p, l, nil)
	look := func(name string) {
		if _, err := c.requests.reconcile(t.Context(), queue.Request(name)); err != nil {
			t.Fatal(err)
		}
	}
	look("untold")
	harness.OK(t, controllers.Same("block that the previous leader created for request untold", answered(t, "untold").Name, "p-5"))
	ask(t, "new", "n", "p")
	look("new")
	look("new") // the cache may trail the answer as well
	harness.OK(t, controllers.Same("block of request new, with p-0 allocated", answered(t, "new").Name, "p-1"))
	sound(t)
}

// The sweep looks up an allocated index that no watch has confirmed: a block that was deleted
// while a watch was broken does not stay allocated.
func TestUnconfirmedIndexIsLookedUp(t *testing.T) {
	harness.KubeClean(t)
	makeNode(t, "n")
	now := clock.NewFake(time.Now())
	c, _ := start(t, Options{Clock: now, Sweep: time.Second})
	makePool(t, "p", 0, "10.2.0.0/31")
	poolIs(t, "p", "accepted", condition(v1alpha1.ConditionReady, metav1.ConditionTrue, reasonReady))
	given(t, "r0", "n", "p")
	c.allocator.observeListed("p", 1, now.Now())
	ask(t, "r1", "n", "p")
	failed(t, "r1", v1alpha1.ReasonPoolExhausted, "all 2 blocks")
	controllers.AwaitValue(t, "timers of the sweep", now.Waiting, 1)
	now.Advance(2 * unconfirmedFor)
	harness.OK(t, controllers.Same("block of r1", answered(t, "r1").Name, "p-1"))
}

// A claim renewed at the moment of its release keeps the block.
func TestRenewalDuringRelease(t *testing.T) {
	harness.KubeClean(t)
	c := harness.KubeClient(t)
	makeNode(t, "n")
	var deletes atomic.Int32
	start(t, Options{Grace: time.Second}, before(func(r *http.Request) {
		if r.Method != http.MethodDelete || !strings.HasSuffix(r.URL.Path, "/addressblocks/p-0") || deletes.Add(1) > 1 {
			return
		}
		body := fmt.Appendf(nil, `{"status":{"renewTime":%q}}`, time.Now().UTC().Format(metav1.RFC3339Micro))
		if err := c.Status().Patch(context.Background(), blockNamed("p-0"), client.RawPatch(types.MergePatchType, body)); err != nil {
			t.Error(err)
		}
		// With its Node back, only the precondition of the delete decides, not the next reconcile.
		if err := c.Create(context.Background(), nodeNamed("n")); err != nil {
			t.Error(err)
		}
	}))
	makePool(t, "p", 0, "10.2.0.0/31")
	given(t, "r0", "n", "p")
	harness.OK(t, c.Delete(t.Context(), nodeNamed("n")))
	controllers.AwaitValue(t, "deletion of the block attempted", func() bool { return deletes.Load() > 0 }, true)
	given(t, "r1", "n", "p") // time has passed
	b := controllers.Get[v1alpha1.AddressBlock](t, client.ObjectKey{Name: "p-0"})
	if b.DeletionTimestamp != nil {
		t.Error("block p-0 was deleted although its claim was renewed")
	}
}

// Allocating from a pool with a refused subnet costs no more API calls than from any other pool.
func TestRefusedSubnetCostsNothing(t *testing.T) {
	harness.KubeClean(t)
	makeNode(t, "n")
	var lists atomic.Int32
	now := clock.NewFake(time.Now()) // so that the refused subnet is not rechecked
	start(t, Options{Clock: now}, before(func(r *http.Request) {
		// The cache's list has a resourceVersion parameter.
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/addresspools") && r.URL.RawQuery == "" {
			lists.Add(1)
		}
	}))
	withoutPolicy(t, "berth-pools-do-not-overlap")
	makePool(t, "a", 0, "10.1.0.0/24")
	poolIs(t, "a", "accepted", condition(v1alpha1.ConditionReady, metav1.ConditionTrue, reasonReady))
	makeOverlapping(t, "b", 0, "10.2.0.0/24", "10.1.0.0/28")
	poolIs(t, "b", "ready with its own subnet", condition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonPoolOverlaps))
	controllers.AwaitEvent(t, poolNamed("b"), v1alpha1.ReasonPoolOverlaps)
	before := lists.Load()
	for i := range 20 {
		given(t, fmt.Sprintf("r%d", i), "n", "b")
	}
	if n := lists.Load() - before; n > 2 {
		t.Errorf("%d pool lists for 20 blocks, want at most 2", n)
	}
	poolIs(t, "b", "counts", func(p *v1alpha1.AddressPool) error {
		now.Advance(reportEvery)
		return counted(256, 20)(p)
	})
}

// withoutPolicy removes a policy's binding until the test ends. The API server takes a moment to
// apply the change.
func withoutPolicy(t *testing.T, name string) {
	t.Helper()
	operatorConfig(t) // applies the policies once
	harness.OK(t, harness.KubeClient(t).Delete(t.Context(), policyBinding(t, name)))
	t.Cleanup(func() {
		if err := harness.ApplyAccess(context.Background(), deploy.PoolMode); err != nil {
			t.Error(err)
		}
	})
}

// pieceOf returns a block with one CIDR.
func pieceOf(t *testing.T, cidr string) block.Block {
	t.Helper()
	c, err := netip.ParsePrefix(cidr)
	harness.OK(t, err)
	return block.Block{IPv4: c}
}

// If two operators accepted overlapping pools concurrently and died, the pool without a block
// loses the subnet.
func TestOverlapIsResolved(t *testing.T) {
	harness.KubeClean(t)
	makeNode(t, "n")
	withoutPolicy(t, "berth-pools-do-not-overlap")
	c := harness.KubeClient(t)
	accept := func(name string, cidr string) *v1alpha1.AddressPool {
		p := makeOverlapping(t, name, 0, cidr)
		controllers.MergeStatus(t, c, p, `{"status":{"acceptedSubnets":1}}`)
		return p
	}
	accept("a", "10.1.0.0/30")
	accept("b", "10.1.0.0/29")
	accept("c", "10.2.0.0/30")
	d := accept("d", "10.2.0.0/29")
	ask(t, "r", "n", "d")
	r := controllers.Get[v1alpha1.BlockRequest](t, client.ObjectKey{Name: "r"})
	harness.OK(t, harness.KubeClientFor(t, operatorConfig(t)).Create(t.Context(), newBlock(r, offer{index: 3, piece: pieceOf(t, "10.2.0.3/32"), pool: d.UID})))

	start(t, Options{})
	for name, wins := range map[string]bool{"a": true, "b": false, "c": false, "d": true} {
		want := condition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonPoolOverlaps)
		if wins {
			want = condition(v1alpha1.ConditionReady, metav1.ConditionTrue, reasonReady)
		}
		poolIs(t, name, "accepted subnets", func(p *v1alpha1.AddressPool) error {
			if got := p.Status.AcceptedSubnets == 1; got != wins {
				return fmt.Errorf("%d subnets accepted", p.Status.AcceptedSubnets)
			}
			return want(p)
		})
	}
	harness.OK(t, controllers.Same("block of r", answered(t, "r").Name, "d-3"))
	ask(t, "r-b", "n", "b")
	failed(t, "r-b", v1alpha1.ReasonPoolOverlaps, "pool a")
	given(t, "r-a", "n", "a")
	sound(t)
}

func TestMetricsOfPools(t *testing.T) {
	m := NewMetrics()
	m.RequestServed(4 * time.Second)
	m.RequestRefused("NodeQuota")
	g := gauges(func() []Usage {
		return []Usage{{
			Pool: "default", Waiting: 15,
			Blocks:    v1alpha1.PoolCounts{Total: 9, Allocated: 10, Free: 11},
			Addresses: v1alpha1.PoolCounts{Total: 12, Allocated: 13, Free: 14},
		}}
	})
	harness.CheckMetrics(t, append(m.Collectors(), g), Families, map[string]string{
		`berth_operator_pool_blocks{pool="default",state="max"}`:          "9",
		`berth_operator_pool_blocks{pool="default",state="allocated"}`:    "10",
		`berth_operator_pool_blocks{pool="default",state="free"}`:         "11",
		`berth_operator_pool_addresses{pool="default",state="max"}`:       "12",
		`berth_operator_pool_addresses{pool="default",state="allocated"}`: "13",
		`berth_operator_pool_addresses{pool="default",state="free"}`:      "14",
		`berth_operator_pool_waiting_requests{pool="default"}`:            "15",
		`berth_operator_block_request_seconds_sum`:                        "4",
		`berth_operator_block_requests_refused_total{reason="NodeQuota"}`: "1",
	})
}
