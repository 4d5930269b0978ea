package deploy_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/test/harness"
)

// addressPool returns a pool with subnets written as "10.0.0.0/24 fd00::/120".
func addressPool(name string, subnets ...string) *v1alpha1.AddressPool {
	zero := int32(0)
	p := &v1alpha1.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.AddressPoolSpec{BlockSizeBits: &zero}}
	for _, text := range subnets {
		var s v1alpha1.PoolSubnet
		for _, f := range strings.Fields(text) {
			if strings.Contains(f, ":") {
				s.IPv6 = f
			} else {
				s.IPv4 = f
			}
		}
		p.Spec.Subnets = append(p.Spec.Subnets, s)
	}
	return p
}

// addressBlock returns a block as the operator creates it.
func addressBlock(pool string, index int64, node string) *v1alpha1.AddressBlock {
	return &v1alpha1.AddressBlock{
		ObjectMeta: metav1.ObjectMeta{
			Name:        fmt.Sprintf("%s-%d", pool, index),
			Labels:      map[string]string{v1alpha1.LabelPool: pool, v1alpha1.LabelNode: v1alpha1.NodeLabel(node)},
			Annotations: map[string]string{"example.com/ticket": "7"},
			Finalizers:  []string{v1alpha1.FinalizerBlock, "example.com/mine"},
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "berth.dev/v1alpha1", Kind: "AddressPool", Name: pool, UID: "uid"},
			},
		},
		PoolName: pool, NodeName: node, Index: index, IPv4: fmt.Sprintf("10.0.0.%d/32", index), RequestUID: "request",
	}
}

func owner(kind, name string) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: kind, Name: name, UID: "uid"}
}

func blockRequest(name, node string) *v1alpha1.BlockRequest {
	return &v1alpha1.BlockRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.BlockRequestSpec{NodeName: node, PoolName: "default"},
	}
}

// applyPoolPolicies installs only the policies of pools.
func applyPoolPolicies(t *testing.T) {
	t.Helper()
	harness.KubeClean(t)
	installPoolPolicies(t)
}

// installPoolPolicies installs the policies and waits until each is in effect.
func installPoolPolicies(t *testing.T) {
	t.Helper()
	applyPoliciesOf(t, deploy.PoolMode)
	admin, daemon, operator := harness.KubeClient(t), account(t, "berthd", ""), account(t, "berth-operator", "")
	probe, block := addressPool("probe", "10.255.0.0/24"), addressBlock("probe", 0, "node")
	harness.Eventually(t, limit, "a first pool", func() error { return admin.Create(t.Context(), probe) })
	harness.Eventually(t, limit, "the operator's role holds", func() error { return operator.Create(t.Context(), block) })
	untilRefused(t, map[string]func() error{
		"overlap": func() error {
			return admin.Create(t.Context(), addressPool("probe-2", "10.255.0.0/24"), client.DryRunAll)
		},
		"blocks":     func() error { return admin.Create(t.Context(), addressBlock("probe", 1, "node"), client.DryRunAll) },
		"operator's": func() error { return operator.Create(t.Context(), blockRequest("probe", "node"), client.DryRunAll) },
		"requests":   func() error { return daemon.Create(t.Context(), blockRequest("probe", "node"), client.DryRunAll) },
		"deletions":  func() error { return daemon.Delete(t.Context(), block, client.DryRunAll) },
	})
	harness.OK(t, admin.Delete(t.Context(), probe))
	harness.OK(t, admin.Delete(t.Context(), block))
	harness.OK(t, change(t, admin, block, func(b *v1alpha1.AddressBlock) { b.Finalizers = nil }))
}

// overlaps checks that a pool was rejected and that the message names both ranges.
func overlaps(t *testing.T, err error, a, b string) {
	t.Helper()
	want := "spec.subnets must not overlap those of another AddressPool: " + a + " overlaps " + b
	if !apierrors.IsInvalid(err) || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

func TestPoolsDoNotOverlap(t *testing.T) {
	applyPoolPolicies(t)
	c := harness.KubeClient(t)
	first := addressPool("first", "10.0.0.0/16 fd00::/112", "10.1.0.0/24 fd01::/120")
	harness.OK(t, c.Create(t.Context(), first))
	second := addressPool("second", "10.2.0.0/16 fd02::/112")
	harness.OK(t, c.Create(t.Context(), second))
	seen(t, second)
	for _, tc := range []struct {
		name  string
		pool  *v1alpha1.AddressPool
		mine  string
		other string
	}{
		{"inside", addressPool("third", "10.0.7.0/24"), "10.0.7.0/24", "10.0.0.0/16 of first"},
		{"around", addressPool("third", "10.1.0.0/16"), "10.1.0.0/16", "10.1.0.0/24 of first"},
		{"in a later subnet", addressPool("third", "10.9.0.0/24", "10.2.255.255/32"), "10.2.255.255/32", "10.2.0.0/16 of second"},
		{"in IPv6 alone", addressPool("third", "10.9.0.0/24 fd01::/120"), "fd01::/120", "fd01::/120 of first"},
		{"written otherwise", addressPool("third", "fd02:0000:0::00/112"), "fd02::/112", "fd02::/112 of second"},
	} {
		t.Run(tc.name, func(t *testing.T) { overlaps(t, c.Create(t.Context(), tc.pool), tc.mine, tc.other) })
	}
	t.Run("appended", func(t *testing.T) {
		overlaps(t, change(t, c, first, func(p *v1alpha1.AddressPool) {
			p.Spec.Subnets = append(p.Spec.Subnets, v1alpha1.PoolSubnet{IPv4: "10.2.0.0/24", IPv6: "fd03::/120"})
		}), "10.2.0.0/24", "10.2.0.0/16 of second")
		harness.OK(t, change(t, c, first, func(p *v1alpha1.AddressPool) {
			p.Spec.Subnets = append(p.Spec.Subnets, v1alpha1.PoolSubnet{IPv4: "10.3.0.0/24", IPv6: "fd03::/120"})
		}))
	})
	t.Run("addresses of Services", func(t *testing.T) {
		services := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.77.0.0/24", "fd77::/120"}}}
		harness.OK(t, c.Create(t.Context(), services))
		t.Cleanup(func() { harness.OK(t, c.Delete(context.Background(), services)) })
		const why = "spec.subnets must not overlap the addresses of Services: "
		over := addressPool("over", "10.78.0.0/24 fd77::/120")
		untilRefused(t, map[string]func() error{"services": func() error { return c.Create(t.Context(), over, client.DryRunAll) }})
		for _, tc := range []struct {
			pool *v1alpha1.AddressPool
			mine string
		}{{over, "fd77::/120"}, {addressPool("over", "10.76.0.0/24", "10.77.0.7/32"), "10.77.0.7/32"}, {addressPool("over", "10.64.0.0/12"), "10.64.0.0/12"}} {
			if err := c.Create(t.Context(), tc.pool); !apierrors.IsInvalid(err) || !strings.HasSuffix(err.Error(), why+tc.mine+" overlaps 10.77.0.0/24, fd77::/120 of ServiceCIDR more") {
				t.Errorf("%s: %v", tc.mine, err)
			}
		}
		harness.OK(t, c.Create(t.Context(), addressPool("beside", "10.77.1.0/24")))
	})
	t.Run("next to one another", func(t *testing.T) {
		harness.OK(t, c.Create(t.Context(), addressPool("third", "10.1.1.0/24 fd01::100/120", "10.3.1.0/24 fd03::100/120")))
	})
}

// Overlapping pools, created concurrently or before the policy, can still be labelled, finalized
// and deleted.
func TestOverlappingPoolCanBeRemoved(t *testing.T) {
	applyPoolPolicies(t)
	c := harness.KubeClient(t)
	first, second := addressPool("first", "10.0.0.0/16"), addressPool("second", "10.0.0.0/16")
	second.Finalizers = []string{v1alpha1.FinalizerPool}
	withoutOverlapPolicy(t, c, func() {
		harness.OK(t, c.Create(t.Context(), first))
		harness.OK(t, c.Create(t.Context(), second))
	})
	harness.OK(t, change(t, c, second, func(p *v1alpha1.AddressPool) { p.Labels = map[string]string{"a": "b"} }))
	harness.OK(t, changeStatus(t, c, second, func(p *v1alpha1.AddressPool) { p.Status.NextIndex = 1 }))
	overlaps(t, change(t, c, second, func(p *v1alpha1.AddressPool) {
		p.Spec.Subnets = append(p.Spec.Subnets, v1alpha1.PoolSubnet{IPv4: "10.9.0.0/24"})
	}), "10.0.0.0/16", "10.0.0.0/16 of first")
	harness.OK(t, c.Delete(t.Context(), second))
	harness.OK(t, change(t, c, second, func(p *v1alpha1.AddressPool) { p.Finalizers = nil }))
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(second), second); !apierrors.IsNotFound(err) {
		t.Errorf("got %v, want it to be gone", err)
	}
}

// Comparing two pools of the maximum size stays below the API server's cost limit for an
// expression.
func TestLargestPoolsAreCompared(t *testing.T) {
	applyPoolPolicies(t)
	c := harness.KubeClient(t)
	subnets := func(base int) (out []string) {
		for i := range 64 {
			out = append(out, fmt.Sprintf("10.%d.1%02d.128/32 fd00:0%03x:1111:2222:3333:4444:5555:1%03x/128", base, i, base, i))
		}
		return out
	}
	first, third := addressPool("first", subnets(100)...), subnets(102)
	third[63] = "10.102.255.128/32 " + strings.Fields(subnets(100)[63])[1]
	harness.OK(t, c.Create(t.Context(), first))
	seen(t, first)
	harness.OK(t, c.Create(t.Context(), addressPool("second", subnets(101)...)))
	overlaps(t, c.Create(t.Context(), addressPool("third", third...)),
		"fd00:64:1111:2222:3333:4444:5555:103f/128", "fd00:64:1111:2222:3333:4444:5555:103f/128 of first")
	harness.OK(t, c.Create(t.Context(), addressPool("third", subnets(102)...)))
}

func TestDaemonRequestsForItsOwnNode(t *testing.T) {
	applyPoolPolicies(t)
	admin := harness.KubeClient(t)
	daemon, loose := account(t, "berthd", "node-1"), account(t, "berthd", "")
	own, other := blockRequest("own", "node-1"), blockRequest("other", "node-2")

	t.Run("its own", func(t *testing.T) {
		harness.OK(t, daemon.Create(t.Context(), own))
		harness.OK(t, change(t, daemon, own, func(r *v1alpha1.BlockRequest) { r.Labels = map[string]string{"a": "b"} }))
	})
	t.Run("not another's", func(t *testing.T) {
		const why = "berthd of node node-1 may write the BlockRequests of that node only, not those of node-2"
		forbidden(t, daemon.Create(t.Context(), other.DeepCopy()), why)
		harness.OK(t, admin.Create(t.Context(), other))
		forbidden(t, change(t, daemon, other, func(r *v1alpha1.BlockRequest) { r.Labels = map[string]string{"a": "b"} }), why)
		forbidden(t, daemon.Delete(t.Context(), other), why)
		forbidden(t, daemon.DeleteAllOf(t.Context(), &v1alpha1.BlockRequest{}), why)
	})
	t.Run("not the answer", func(t *testing.T) {
		forbidden(t, changeStatus(t, daemon, own, func(r *v1alpha1.BlockRequest) { r.Status.AddressBlockName = "default-0" }),
			"berthd may not write the status of a BlockRequest")
	})
	t.Run("not without a node", func(t *testing.T) {
		const why = "this token names no node"
		forbidden(t, loose.Create(t.Context(), blockRequest("loose", "node-3")), why)
		forbidden(t, loose.Delete(t.Context(), other), why)
	})
	t.Run("nothing beside", func(t *testing.T) {
		for what, how := range map[string]func(*v1alpha1.BlockRequest){
			"a long name":   func(r *v1alpha1.BlockRequest) { r.Name = strings.Repeat("a", 91) },
			"labels":        func(r *v1alpha1.BlockRequest) { r.Labels = map[string]string{"a": "b"} },
			"annotations":   func(r *v1alpha1.BlockRequest) { r.Annotations = map[string]string{"a": strings.Repeat("b", 200<<10)} },
			"finalizers":    func(r *v1alpha1.BlockRequest) { r.Finalizers = []string{"example.com/mine"} },
			"another owner": func(r *v1alpha1.BlockRequest) { r.OwnerReferences = []metav1.OwnerReference{owner("Node", "node-2")} },
			"a pod":         func(r *v1alpha1.BlockRequest) { r.OwnerReferences = []metav1.OwnerReference{owner("Pod", "node-1")} },
			"two owners": func(r *v1alpha1.BlockRequest) {
				r.OwnerReferences = []metav1.OwnerReference{owner("Node", "node-1"), owner("Node", "node-1")}
				r.OwnerReferences[1].UID = "another"
			},
		} {
			r := blockRequest("beside", "node-1")
			how(r)
			if err := byPolicy(daemon.Create(t.Context(), r)); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		r := blockRequest("beside", "node-1")
		r.OwnerReferences = []metav1.OwnerReference{owner("Node", "node-1")}
		harness.OK(t, daemon.Create(t.Context(), r))
	})
	t.Run("takes it back", func(t *testing.T) {
		harness.OK(t, daemon.DeleteAllOf(t.Context(), &v1alpha1.BlockRequest{}, client.MatchingFields{"spec.nodeName": "node-1"}))
	})
}

func TestDaemonKeepsItsOwnBlocks(t *testing.T) {
	applyPoolPolicies(t)
	operator, daemon, loose := account(t, "berth-operator", ""), account(t, "berthd", "node-1"), account(t, "berthd", "")
	own, other := addressBlock("default", 1, "node-1"), addressBlock("default", 2, "node-2")
	for _, b := range []*v1alpha1.AddressBlock{own, other} {
		harness.OK(t, operator.Create(t.Context(), b))
	}
	renew := func(b *v1alpha1.AddressBlock) { b.Status.RenewTime = &metav1.MicroTime{Time: time.Now()} }
	release := func(b *v1alpha1.AddressBlock) { b.Finalizers = []string{"example.com/mine"} }
	const finalizers = "berthd may only remove the finalizer berth.dev/addresses of an AddressBlock, and only after the block is deleted"

	t.Run("renews its claim", func(t *testing.T) { harness.OK(t, changeStatus(t, daemon, own, renew)) })
	t.Run("not another's", func(t *testing.T) {
		const why = "berthd of node node-1 may write the AddressBlocks of that node only, not those of node-2"
		forbidden(t, changeStatus(t, daemon, other, renew), why)
		forbidden(t, change(t, daemon, other, release), why)
		forbidden(t, daemon.Delete(t.Context(), other), why)
		forbidden(t, daemon.DeleteAllOf(t.Context(), &v1alpha1.AddressBlock{}, client.MatchingFields{"nodeName": "node-2"}), why)
	})
	t.Run("not without a node", func(t *testing.T) {
		forbidden(t, changeStatus(t, loose, own, renew), "this token names no node")
		forbidden(t, loose.Delete(t.Context(), own), "this token names no node")
	})
	t.Run("makes none", func(t *testing.T) {
		forbidden(t, daemon.Create(t.Context(), addressBlock("default", 3, "node-1")), "AddressBlocks may be created by berth-operator only")
	})
	t.Run("does not let go of one that it has", func(t *testing.T) {
		forbidden(t, change(t, daemon, own, release), finalizers)
		forbidden(t, change(t, daemon, own, func(b *v1alpha1.AddressBlock) { b.Finalizers = append(b.Finalizers, "another") }), finalizers)
	})
	t.Run("nothing that is the operator's", func(t *testing.T) {
		const why = "berthd may not change labels, annotations or owner references of an AddressBlock"
		for _, how := range []func(b *v1alpha1.AddressBlock){
			func(b *v1alpha1.AddressBlock) { b.Labels[v1alpha1.LabelPool] = "other" },
			func(b *v1alpha1.AddressBlock) { b.Labels = nil },
			func(b *v1alpha1.AddressBlock) { b.Annotations = nil },
			func(b *v1alpha1.AddressBlock) { b.OwnerReferences = nil },
			func(b *v1alpha1.AddressBlock) { b.OwnerReferences[0].UID = "another" },
		} {
			forbidden(t, change(t, daemon, own, how), why)
		}
		forbidden(t, change(t, daemon, own, func(b *v1alpha1.AddressBlock) {
			b.Withheld = []v1alpha1.WithheldAddresses{{CIDR: "10.0.0.1/32", Owner: "Node node-1"}}
		}), "berthd may not change withheld of an AddressBlock")
	})
	t.Run("gives it back", func(t *testing.T) {
		harness.OK(t, daemon.Delete(t.Context(), own))
		for _, keep := range [][]string{{}, {v1alpha1.FinalizerBlock}} {
			forbidden(t, change(t, daemon, own, func(b *v1alpha1.AddressBlock) { b.Finalizers = keep }), finalizers)
		}
		harness.OK(t, changeStatus(t, daemon, own, renew))
		harness.OK(t, change(t, daemon, own, release))
	})
}

func TestOnlyOperatorCreatesBlocks(t *testing.T) {
	applyPoolPolicies(t)
	operator := account(t, "berth-operator", "node-1")
	for who, as := range map[string]client.Client{
		"admin": harness.KubeClient(t),
		"system:serviceaccount:kube-system:another": account(t, "another", ""),
		"system:serviceaccount:kube-system:berthd":  account(t, "berthd", "node-1"),
	} {
		err := as.Create(t.Context(), addressBlock("default", 1, "node-1"))
		forbidden(t, err, "AddressBlocks may be created by berth-operator only, not by "+who)
	}
	harness.OK(t, operator.Create(t.Context(), addressBlock("default", 1, "node-1")))
}

func TestOperatorWritesItsOwnFields(t *testing.T) {
	applyPoolPolicies(t)
	admin, operator := harness.KubeClient(t), account(t, "berth-operator", "node-1")
	pool, request, block := addressPool("default", "10.0.0.0/16"), blockRequest("request", "node-1"), addressBlock("default", 1, "node-1")
	harness.OK(t, admin.Create(t.Context(), pool))
	harness.OK(t, admin.Create(t.Context(), request))
	harness.OK(t, operator.Create(t.Context(), block))

	t.Run("answers", func(t *testing.T) {
		harness.OK(t, change(t, operator, pool, func(p *v1alpha1.AddressPool) { p.Finalizers = []string{v1alpha1.FinalizerPool} }))
		harness.OK(t, changeStatus(t, operator, pool, func(p *v1alpha1.AddressPool) { p.Status.AcceptedSubnets = 1 }))
		harness.OK(t, changeStatus(t, operator, request, func(r *v1alpha1.BlockRequest) { r.Status.AddressBlockName = block.Name }))
	})
	t.Run("not what a pool is", func(t *testing.T) {
		const why = "berth-operator may write the status and finalizers of an AddressPool only; spec belongs to people"
		forbidden(t, operator.Create(t.Context(), addressPool("another", "10.1.0.0/16")), why)
		forbidden(t, change(t, operator, pool, func(p *v1alpha1.AddressPool) { p.Spec.PodNamespaces = []string{"team-a"} }), why)
	})
	t.Run("no request and no claim", func(t *testing.T) {
		forbidden(t, operator.Create(t.Context(), blockRequest("another", "node-1")), "berth-operator may not create a BlockRequest")
		forbidden(t, changeStatus(t, operator, block, func(b *v1alpha1.AddressBlock) { b.Status.RenewTime = &metav1.MicroTime{Time: time.Now()} }),
			"berth-operator may not write the status of an AddressBlock")
	})
	t.Run("releases", func(t *testing.T) {
		harness.OK(t, operator.Delete(t.Context(), request))
		harness.OK(t, operator.Delete(t.Context(), block))
		harness.OK(t, change(t, operator, block, func(b *v1alpha1.AddressBlock) { b.Finalizers = []string{"example.com/mine"} }))
		harness.OK(t, change(t, admin, block, func(b *v1alpha1.AddressBlock) { b.Finalizers = nil }))
		harness.OK(t, change(t, operator, pool, func(p *v1alpha1.AddressPool) { p.Finalizers = nil }))
	})
}

// withoutOverlapPolicy runs a function while pools may overlap.
func withoutOverlapPolicy(t *testing.T, c client.Client, do func()) {
	t.Helper()
	probe := addressPool("probe", "10.255.0.0/24")
	harness.OK(t, c.Create(t.Context(), probe))
	seen(t, probe)
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "berth-pools-do-not-overlap"}}
	harness.OK(t, c.Delete(t.Context(), binding))
	harness.Eventually(t, limit, "pools may overlap", func() error { return createAlike(t, probe) })
	harness.OK(t, c.Delete(t.Context(), probe))
	do()
	installPoolPolicies(t)
}

// seen waits until the policy sees a pool: the API server's own view of the pools lags behind.
func seen(t *testing.T, p *v1alpha1.AddressPool) {
	t.Helper()
	harness.Eventually(t, limit, "pool "+p.Name+" is seen", func() error {
		if err := createAlike(t, p); err == nil {
			return errors.New("a pool just like it is not refused")
		}
		return nil
	})
}

// createAlike tries to create a pool with the subnets of another.
func createAlike(t *testing.T, p *v1alpha1.AddressPool) error {
	t.Helper()
	alike := addressPool(p.Name + "-again")
	alike.Spec = p.Spec
	return harness.KubeClient(t).Create(t.Context(), alike, client.DryRunAll)
}
