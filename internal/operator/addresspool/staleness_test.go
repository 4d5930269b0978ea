package addresspool

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/transport"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ipam/block"
	"github.com/berthnet/berth/internal/operator/queue"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
)

// before has something done before each request of an operator is sent.
func before(do func(*http.Request)) transport.WrapperFunc {
	return harness.Through(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		do(r)
		return next.RoundTrip(r)
	})
}

// trailing is a cache that no block has arrived in yet.
type trailing struct{ client.Client }

func (trailing) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

// pages are those of a list, as an API server sends them.
type pages struct {
	client.Reader
	json []string
}

func (p *pages) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	page := p.json[0]
	p.json = p.json[1:]
	return json.Unmarshal([]byte(page), list)
}

// A block has nothing of the block at the same place of the page before.
func TestAllBlocks(t *testing.T) {
	a := &api{live: &pages{json: []string{
		`{"metadata":{"continue":"c"},"items":[{"metadata":{"name":"p-0","deletionTimestamp":"2026-01-01T00:00:00Z"},"ipv4":"10.2.0.0/32","ipv6":"fd02::/128",
			"requestUID":"u","withheld":[{"cidr":"10.2.0.0/32","owner":"Node n"}]}]}`,
		`{"metadata":{"continue":""},"items":[{"metadata":{"name":"p-1"},"ipv4":"10.2.0.1/32"}]}`,
	}}}
	var names []string
	for b, err := range a.allBlocks(t.Context()) {
		harness.OK(t, err)
		if names = append(names, b.Name); b.Name == "p-1" && (b.IPv6 != "" || b.RequestUID != "" || b.DeletionTimestamp != nil || b.Withheld != nil) {
			t.Errorf("block %+v", b)
		}
	}
	if !slices.Equal(names, []string{"p-0", "p-1"}) {
		t.Errorf("blocks %v", names)
	}
}

// A leader whose cache does not have its predecessor's last blocks answers those
// requests with them, and cuts no others.
func TestTrailingCache(t *testing.T) {
	harness.KubeClean(t)
	makeNode(t, "n")
	_, end := start(t, Options{})
	makePool(t, "p", 0, "10.2.0.0/28")
	given(t, "told", "n", "p")
	end()
	ask(t, "untold", "n", "p")
	r := &v1alpha1.BlockRequest{}
	harness.OK(t, harness.KubeClient(t).Get(t.Context(), client.ObjectKey{Name: "untold"}, r))
	p := &v1alpha1.AddressPool{}
	harness.OK(t, harness.KubeClient(t).Get(t.Context(), client.ObjectKey{Name: "p"}, p))
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
	if b := answered(t, "untold"); b.Name != "p-5" {
		t.Errorf("got %s, want p-5, which was cut for it", b.Name)
	}
	ask(t, "new", "n", "p")
	look("new")
	look("new") // the cache may trail the answer as well
	if b := answered(t, "new"); b.Name != "p-1" {
		t.Errorf("got %s, want p-1, as p-0 is taken", b.Name)
	}
	sound(t)
}

// A taken index that no watch ever tells of is looked up by the sweep: a block
// that went while a watch was broken does not stay taken.
func TestUnconfirmedIndexIsLookedUp(t *testing.T) {
	harness.KubeClean(t)
	makeNode(t, "n")
	now := clock.NewFake(time.Now())
	c, _ := start(t, Options{Clock: now, Sweep: time.Second})
	makePool(t, "p", 0, "10.2.0.0/31")
	poolIs(t, "p", "it is accepted", condition(v1alpha1.ConditionReady, metav1.ConditionTrue, reasonReady))
	given(t, "r0", "n", "p")
	c.allocator.observeListed("p", 1, now.Now())
	ask(t, "r1", "n", "p")
	failed(t, "r1", v1alpha1.ReasonPoolExhausted, "all 2 blocks")
	harness.Eventually(t, controllers.Limit, "the sweep waits", func() error {
		if n := now.Waiting(); n != 1 {
			return fmt.Errorf("%d wait", n)
		}
		return nil
	})
	now.Advance(2 * unconfirmedFor)
	if b := answered(t, "r1"); b.Name != "p-1" {
		t.Errorf("got %s", b.Name)
	}
}

// A claim that is renewed in the moment of its release keeps the block.
func TestRenewalInTheMomentOfRelease(t *testing.T) {
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
		// So that it is not the next look, but the precondition that counts.
		if err := c.Create(context.Background(), nodeNamed("n")); err != nil {
			t.Error(err)
		}
	}))
	makePool(t, "p", 0, "10.2.0.0/31")
	given(t, "r0", "n", "p")
	harness.OK(t, c.Delete(t.Context(), nodeNamed("n")))
	eventually(t, "its request is removed, then its block would be", func(c client.Client) error {
		if deletes.Load() == 0 {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	given(t, "r1", "n", "p") // time has passed
	b := &v1alpha1.AddressBlock{}
	harness.OK(t, c.Get(t.Context(), client.ObjectKey{Name: "p-0"}, b))
	if b.DeletionTimestamp != nil {
		t.Error("it was deleted")
	}
}

// Blocks of a pool that was refused a subnet cost no more than those of another.
func TestRefusedSubnetCostsNothing(t *testing.T) {
	harness.KubeClean(t)
	makeNode(t, "n")
	var lists atomic.Int32
	now := clock.NewFake(time.Now()) // so that the refused subnet is not checked again by time
	start(t, Options{Clock: now}, before(func(r *http.Request) {
		// The cache says from when on it lists.
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/addresspools") && r.URL.RawQuery == "" {
			lists.Add(1)
		}
	}))
	withoutPolicy(t, "berth-pools-do-not-overlap")
	makePool(t, "a", 0, "10.1.0.0/24")
	poolIs(t, "a", "it is accepted", condition(v1alpha1.ConditionReady, metav1.ConditionTrue, reasonReady))
	makeOverlapping(t, "b", 0, "10.2.0.0/24", "10.1.0.0/28")
	poolIs(t, "b", "it gives what is its own", condition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonPoolOverlaps))
	controllers.AwaitEvent(t, poolNamed("b"), v1alpha1.ReasonPoolOverlaps)
	before := lists.Load()
	for i := range 20 {
		given(t, fmt.Sprintf("r%d", i), "n", "b")
	}
	if n := lists.Load() - before; n > 2 {
		t.Errorf("%d lists of pools for 20 blocks", n)
	}
	poolIs(t, "b", "counts", func(p *v1alpha1.AddressPool) error {
		now.Advance(reportEvery)
		return counted(256, 20)(p)
	})
}

// withoutPolicy takes a policy's binding away until the test ends. It takes the
// API server a moment to heed that.
func withoutPolicy(t *testing.T, name string) {
	t.Helper()
	operatorConfig(t) // applies it, once
	harness.OK(t, harness.KubeClient(t).Delete(t.Context(), policyBinding(t, name)))
	t.Cleanup(func() {
		if err := harness.ApplyAccess(context.Background(), deploy.PoolMode); err != nil {
			t.Error(err)
		}
	})
}

// pieceOf is a block of one address.
func pieceOf(t *testing.T, cidr string) block.Block {
	t.Helper()
	c, err := netip.ParsePrefix(cidr)
	harness.OK(t, err)
	return block.Block{IPv4: c}
}

// Two pools that two operators accepted at once, and died: one loses the subnet, and not
// the one of which there is a block.
func TestClashIsResolved(t *testing.T) {
	harness.KubeClean(t)
	makeNode(t, "n")
	withoutPolicy(t, "berth-pools-do-not-overlap")
	c := harness.KubeClient(t)
	accept := func(name string, cidr string) *v1alpha1.AddressPool {
		p := makeOverlapping(t, name, 0, cidr)
		harness.OK(t, c.Status().Patch(t.Context(), p, client.RawPatch(types.MergePatchType, []byte(`{"status":{"acceptedSubnets":1}}`))))
		return p
	}
	accept("a", "10.1.0.0/30")
	accept("b", "10.1.0.0/29")
	accept("c", "10.2.0.0/30")
	d := accept("d", "10.2.0.0/29")
	ask(t, "r", "n", "d")
	r := &v1alpha1.BlockRequest{}
	harness.OK(t, c.Get(t.Context(), client.ObjectKey{Name: "r"}, r))
	harness.OK(t, harness.KubeClientFor(t, operatorConfig(t)).Create(t.Context(), newBlock(r, offer{index: 3, piece: pieceOf(t, "10.2.0.3/32"), pool: d.UID})))

	start(t, Options{})
	for name, wins := range map[string]bool{"a": true, "b": false, "c": false, "d": true} {
		want := condition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonPoolOverlaps)
		if wins {
			want = condition(v1alpha1.ConditionReady, metav1.ConditionTrue, reasonReady)
		}
		poolIs(t, name, "it stays or gives way", func(p *v1alpha1.AddressPool) error {
			if got := p.Status.AcceptedSubnets == 1; got != wins {
				return fmt.Errorf("%d subnets accepted", p.Status.AcceptedSubnets)
			}
			return want(p)
		})
	}
	if b := answered(t, "r"); b.Name != "d-3" {
		t.Errorf("got %s", b.Name)
	}
	ask(t, "r-b", "n", "b")
	failed(t, "r-b", v1alpha1.ReasonPoolOverlaps, "pool a")
	given(t, "r-a", "n", "a")
	sound(t)
}
