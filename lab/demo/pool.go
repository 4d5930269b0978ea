package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/network/site"
	"github.com/berthnet/berth/lab/run/node"
)

// claimGrace is how long a claim lasts: longer than stalls of a busy machine.
const claimGrace = 12 * time.Second

// Pools of the demo in addition to the default one: public has room for two pods,
// and pods in tenant's namespace may select lent by annotation.
const (
	publicPool = "public"
	lentPool   = "lent"
	tenant     = "tenant"
)

func demoPools() []v1alpha1.AddressPool {
	lent := lab.Pool(lentPool, 2, v1alpha1.PoolSubnet{IPv4: "10.3.0.0/24", IPv6: "fd03::/120"})
	lent.Spec.PodNamespaces = []string{tenant}
	return append(lab.DefaultPools(), lab.Pool(publicPool, 0, v1alpha1.PoolSubnet{IPv4: "198.51.101.0/31"}), lent)
}

// pools gives access to the blocks of a lab in pool mode, in the API and at the router.
type pools struct{ lab *lab.Lab }

// blocksOf returns the blocks of a node, of one pool or, with "", of all.
func (s *pools) blocksOf(ctx context.Context, n *node.Node, pool string) []v1alpha1.AddressBlock {
	return slices.DeleteFunc(must(s.lab.Kube.Blocks(ctx)), func(b v1alpha1.AddressBlock) bool {
		return b.NodeName != n.Name || pool != "" && b.PoolName != pool
	})
}

// announced fails unless the router forwards a block's addresses.
func (s *pools) announced(ctx context.Context, b v1alpha1.AddressBlock) {
	routes := must(s.lab.Site.Routes(ctx))
	for _, text := range []string{b.IPv4, b.IPv6} {
		if p, err := netip.ParsePrefix(text); err == nil && !routes[p].IsValid() {
			fail("the router has no route to %s", p)
		}
	}
}

// settledBlocks waits until a node has blocks of the default pool, all of them announced.
func (s *pools) settledBlocks(ctx context.Context, n *node.Node) (blocks []v1alpha1.AddressBlock) {
	await(ctx, "blocks of "+n.Name, func() {
		if blocks = s.blocksOf(ctx, n, v1alpha1.DefaultPool); len(blocks) == 0 {
			fail("the node has no blocks")
		}
		for _, b := range blocks {
			s.announced(ctx, b)
		}
	})
	return blocks
}

func firstBlocks(ctx context.Context, s *stage) string {
	var list []string
	for _, n := range s.nodes {
		for _, b := range s.pools.settledBlocks(ctx, n) {
			list = append(list, n.Name+" "+b.IPv4)
		}
	}
	return strings.Join(list, ", ") + "; by BGP"
}

// fromSeveralBlocks adds the pods, all at once on every node: more than one block holds.
func fromSeveralBlocks(ctx context.Context, s *stage) string {
	took := s.add(ctx, nil, names("pod", s.size.pods))
	total := 0
	for _, n := range s.nodes {
		for _, p := range n.Pods() {
			if len(p.Addrs) != 2 {
				fail("pod %s of %s has %v, want both families", p.Name, n.Name, p.Addrs)
			}
		}
		blocks := s.pools.settledBlocks(ctx, n)
		if len(blocks) < 2 {
			fail("%s has %d block for %d pods", n.Name, len(blocks), s.size.pods)
		}
		total += len(blocks)
	}
	return fmt.Sprintf("%d dual-stack pods on %d nodes from %d blocks; %s", len(took), len(s.nodes), total, spread(took))
}

// freeAddress sends a packet from outside to an unused address of a block. Without an unreachable route for the block,
// the node would send the packet back.
func freeAddress(ctx context.Context, s *stage) string {
	n := s.nodes[0]
	doc := must(lab.Document(ctx, n))
	if len(doc.Available) == 0 {
		fail("%s has no free address", n.Name)
	}
	free := doc.Available[0].Address
	one, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	began := time.Now()
	switch _, err := echo.Ask(one, s.lab.OutsidePath(), "tcp", port(free), netip.Addr{}, "hello"); {
	case err == nil:
		fail("%s replied, although no pod has this address", free)
	case one.Err() != nil || !errors.Is(err, syscall.EHOSTUNREACH):
		fail("request to %s: want ICMP host unreachable, got: %w", free, err)
	}
	return fmt.Sprintf("%s: no route to host, after %s", free, ms(time.Since(began)))
}

// addOf adds a pod whose address must belong to a pool.
func (s *pools) addOf(ctx context.Context, n *node.Node, pool, name string, o node.PodOptions) *node.Pod {
	p := must(n.AddPod(ctx, name, o))
	if !slices.ContainsFunc(s.blocksOf(ctx, n, pool), func(b v1alpha1.AddressBlock) bool {
		c, err := netip.ParsePrefix(b.IPv4)
		return err == nil && c.Contains(p.Addr())
	}) {
		fail("pod %s has %s, want one of pool %s", p.Name, p.Addr(), pool)
	}
	return p
}

func annotatedNamespace(ctx context.Context, s *stage) string {
	check(s.lab.Kube.CreateNamespace(ctx, "edge", map[string]string{v1alpha1.AnnotationPool: publicPool}))
	p := s.pools.addOf(ctx, s.nodes[0], publicPool, "edge", node.PodOptions{Namespace: "edge"})
	var a asks
	await(ctx, "the address is announced", func() {
		a = asks{}
		a.ask(ctx, "outside", s.lab.OutsidePath(), port(p.Addr()), site.OutsideHost)
		check(errors.Join(a.errs...))
	})
	return a.result("namespace edge: %s of pool %s, a block of one", p.Addr(), publicPool)
}

// annotatedPod selects a pool by a pod's annotation, in a namespace that the pool allows and in another.
func annotatedPod(ctx context.Context, s *stage) string {
	check(s.lab.Kube.CreateNamespace(ctx, tenant, nil))
	n := s.nodes[1]
	chosen := map[string]string{v1alpha1.AnnotationPool: lentPool}
	p := s.pools.addOf(ctx, n, lentPool, "chooses", node.PodOptions{Namespace: tenant, Annotations: chosen})
	if _, err := n.AddPod(ctx, "may-not", node.PodOptions{Annotations: chosen, Once: true}); err == nil || !strings.Contains(err.Error(), "podNamespaces") {
		fail("a pod of namespace default selected pool %s: want an error that names spec.podNamespaces, got %v", lentPool, err)
	}
	return fmt.Sprintf("%s of pool %s in namespace %s; rejected in default", p.Addr(), lentPool, tenant)
}

// poolWithoutAPI adds and deletes pods while the API server is down.
func poolWithoutAPI(ctx context.Context, s *stage) string {
	n := s.nodes[2]
	check(lab.BindPods(ctx, n, "no-api"))
	// The daemon's watch is ordered: once it has this pod, it has the other.
	must(n.AddPod(ctx, "before", node.PodOptions{}))
	check(s.lab.WaitReports(ctx))
	figures := s.serveWithoutAPI(ctx, n, "no-api", n.Pods()[0].Name)
	revive(ctx, s.lab)
	return figures
}

// killPoolOperator kills the leader and adds more pods than there are addresses for.
func killPoolOperator(ctx context.Context, s *stage) (figures string) {
	n := s.nodes[1]
	before := len(s.pools.blocksOf(ctx, n, v1alpha1.DefaultPool))
	withoutLeader(ctx, s.lab, func() {
		began := time.Now()
		s.add(ctx, n, names("more", s.size.pods))
		more := len(s.pools.blocksOf(ctx, n, v1alpha1.DefaultPool)) - before
		if more <= 0 {
			fail("%s still has %d blocks, want more", n.Name, before)
		}
		figures = fmt.Sprintf("%s: %d pods, %d more blocks, after %s", n.Name, s.size.pods, more, since(began))
	})
	return figures
}

// exhausted takes the last block of a pool, asks for one more, and appends a subnet to the pool.
func exhausted(ctx context.Context, s *stage) string {
	edge := node.PodOptions{Namespace: "edge"}
	must(s.nodes[1].AddPod(ctx, "edge", edge))
	up := s.start(func() { must(s.nodes[2].AddPod(ctx, "edge", edge)) })
	var p *v1alpha1.AddressPool
	await(ctx, "the pool is exhausted", func() {
		p = must(s.lab.Kube.AddressPool(ctx, publicPool))
		if !meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionExhausted) {
			fail("its conditions are %+v", p.Status.Conditions)
		}
	})
	began := time.Now()
	check(s.lab.Kube.EditAddressPool(ctx, publicPool, func(p *v1alpha1.AddressPool) {
		p.Spec.Subnets = append(p.Spec.Subnets, v1alpha1.PoolSubnet{IPv4: "198.51.101.2/31"})
	}))
	up()
	return fmt.Sprintf("%d of %d blocks of pool %s allocated; a third pod started %s after a subnet was appended",
		p.Status.Blocks.Allocated, p.Status.Blocks.Total, publicPool, since(began))
}

// blockReturns deletes the last pod of a block, and waits until the block is released.
func blockReturns(ctx context.Context, s *stage) string {
	n := s.nodes[2]
	blocks := s.pools.blocksOf(ctx, n, publicPool)
	if len(blocks) != 1 {
		fail("%s has %d blocks of pool %s, want 1", n.Name, len(blocks), publicPool)
	}
	began := time.Now()
	check(n.DelPod(ctx, "edge"))
	await(ctx, "the block is released", func() {
		if len(s.pools.blocksOf(ctx, n, publicPool)) > 0 {
			fail("it exists")
		}
		if attempt(func() { s.pools.announced(ctx, blocks[0]) }) == nil {
			fail("the router still has its route")
		}
	})
	return fmt.Sprintf("%s %s after %s, 4 of them cooling", blocks[0].Name, blocks[0].IPv4, since(began))
}

// nodeDeleted deletes the Node of a running node, and registers it again after the grace period of claims.
func nodeDeleted(ctx context.Context, s *stage) string {
	n := s.nodes[1]
	before := s.pools.blocksOf(ctx, n, "")
	check(s.lab.RemoveNodeObject(ctx, n.Name))
	select {
	case <-ctx.Done():
		check(ctx.Err())
	case <-time.After(claimGrace + 2*time.Second): // longer than the grace period of claims
	}
	after := s.pools.blocksOf(ctx, n, "")
	for _, b := range after {
		known := slices.ContainsFunc(before, func(x v1alpha1.AddressBlock) bool { return x.UID == b.UID })
		if !known || b.DeletionTimestamp != nil || b.Status.RenewTime == nil {
			fail("block %s is new, is being deleted, or is not claimed: %+v", b.Name, b.Status)
		}
	}
	if len(after) != len(before) {
		fail("%s has %d blocks, had %d", n.Name, len(after), len(before))
	}
	check(s.lab.Kube.RegisterNode(ctx, n.Name))
	return fmt.Sprintf("%s keeps its %d blocks, claimed by its daemon", n.Name, len(after))
}

// nodeGone powers a node off and deletes its Node.
func nodeGone(ctx context.Context, s *stage) string {
	n := s.nodes[len(s.nodes)-1]
	blocks := s.pools.blocksOf(ctx, n, "")
	s.nodes = s.nodes[:len(s.nodes)-1]
	began := time.Now()
	check(errors.Join(s.lab.RemoveNode(n.Name), s.lab.RemoveNodeObject(ctx, n.Name)))
	await(ctx, "its blocks are released", func() {
		if left := s.pools.blocksOf(ctx, n, ""); len(left) > 0 {
			fail("%d exist", len(left))
		}
	})
	return fmt.Sprintf("%d blocks of %s released %s after its last sign of life", len(blocks), n.Name, since(began))
}
