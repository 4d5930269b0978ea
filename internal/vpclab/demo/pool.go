package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/vpclab/echo"
	"github.com/berthnet/berth/internal/vpclab/lab"
	"github.com/berthnet/berth/internal/vpclab/node"
	"github.com/berthnet/berth/internal/vpclab/site"
)

// claimGrace is how long a claim lasts: longer than a busy machine stands still.
const claimGrace = 12 * time.Second

// Settings of pool mode under which the story is short.
var (
	poolArgs         = []string{"--cooling-period=" + coolingPeriods[lab.PoolMode].String(), "--block-release-delay=2s", "--block-claim-interval=1s"}
	poolOperatorArgs = []string{"--block-claim-grace=" + claimGrace.String(), "--lease-duration=4s", "--renew-deadline=3s", "--retry-period=500ms"}
)

// Pools of the demo besides the default one: public has room for two pods,
// and tenant's namespace may choose lent by annotations of its pods.
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

// poolProofs in the order in which they are shown.
var poolProofs = []proof{
	{"nodes have blocks, and the router has learned them", firstBlocks},
	{"pods come up through CNI, from several blocks", fillBlocks},
	{"pod to pod on one node and across nodes", podsToPods},
	{"pod to node and node to pod", podsAndNodes},
	{"pod to the outside and back, with its own address", toOutside},
	{"a packet to a free address is refused, and does not loop", freeAddress},
	{"a namespace's annotation chooses the pool", annotatedNamespace},
	{"a pod's own annotation counts where the pool allows it", annotatedPod},
	{"curl localhost:6666/ip-manager tells who has what", introspection},
	{"a deleted pod's address cools and is not reused", cooling},
	{"berthd killed with -9 under traffic: no reply is lost", killUnderTraffic},
	{"operator killed with -9: a standby cuts the next block", killPoolOperator},
	{"an exhausted pool is told by conditions, and heals", exhausted},
	{"an empty block goes back, and its route is withdrawn", blockReturns},
	{"a Node deleted by mistake does not cost it its blocks", nodeDeleted},
	// After it policies on pools take a while to work, and the daemons' watches to come
	// back: who does not hear that its Node is gone claims nothing.
	{"API server away: ADD and DEL go on", poolWithoutAPI},
	{"a node that is gone gives its blocks back", nodeGone},
	{"kernel, records, introspection, objects and router agree", agreement},
}

// blocksOf are the blocks of a node, of one pool or, with "", of all.
func (s *stage) blocksOf(ctx context.Context, n *node.Node, pool string) ([]v1alpha1.AddressBlock, error) {
	all, err := s.lab.Kube.Blocks(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(b v1alpha1.AddressBlock) bool {
		return b.NodeName != n.Name || pool != "" && b.PoolName != pool
	}), nil
}

// announced wants the router to forward a block's addresses.
func (s *stage) announced(ctx context.Context, b v1alpha1.AddressBlock) error {
	routes, err := s.lab.Site.Routes(ctx)
	if err != nil {
		return err
	}
	for _, text := range []string{b.IPv4, b.IPv6} {
		if p, err := netip.ParsePrefix(text); err == nil && !routes[p].IsValid() {
			return fmt.Errorf("the router has no route to %s", p)
		}
	}
	return nil
}

// settledBlocks waits until a node has blocks of the default pool, all of them
// announced.
func (s *stage) settledBlocks(ctx context.Context, n *node.Node) (blocks []v1alpha1.AddressBlock, err error) {
	return blocks, until(ctx, "blocks of "+n.Name, func() error {
		if blocks, err = s.blocksOf(ctx, n, v1alpha1.DefaultPool); err != nil {
			return err
		}
		if len(blocks) == 0 {
			return errors.New("there are none")
		}
		for _, b := range blocks {
			if err := s.announced(ctx, b); err != nil {
				return err
			}
		}
		return nil
	})
}

func firstBlocks(ctx context.Context, s *stage) (string, error) {
	var told []string
	for _, n := range s.nodes {
		blocks, err := s.settledBlocks(ctx, n)
		if err != nil {
			return "", err
		}
		for _, b := range blocks {
			told = append(told, fmt.Sprintf("%s %s", n.Name, b.IPv4))
		}
	}
	return strings.Join(told, ", ") + "; by BGP", nil
}

// fillBlocks makes the pods, all at once on every node: more than one block holds.
func fillBlocks(ctx context.Context, s *stage) (string, error) {
	var mu sync.Mutex // guards took and errs
	var took []time.Duration
	var errs []error
	var wg sync.WaitGroup
	for _, n := range s.nodes {
		for _, name := range names("pod", s.size.pods) {
			wg.Go(func() {
				began := time.Now()
				_, err := n.AddPod(ctx, name, node.PodOptions{})
				mu.Lock()
				defer mu.Unlock()
				took = append(took, time.Since(began))
				errs = append(errs, err)
			})
		}
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return "", err
	}
	total := 0
	for _, n := range s.nodes {
		s.pods[n.Name] = n.Pods()
		for _, p := range n.Pods() {
			if len(p.Addrs) != 2 {
				return "", fmt.Errorf("pod %s of %s has %v, want both families", p.Name, n.Name, p.Addrs)
			}
		}
		blocks, err := s.settledBlocks(ctx, n)
		if err != nil {
			return "", err
		}
		if len(blocks) < 2 {
			return "", fmt.Errorf("%s has %d block for %d pods", n.Name, len(blocks), s.size.pods)
		}
		total += len(blocks)
	}
	slices.Sort(took)
	return fmt.Sprintf("%d dual-stack pods on %d nodes from %d blocks; ADD median %s, slowest %s",
		len(took), len(s.nodes), total, ms(took[len(took)/2]), ms(took[len(took)-1])), nil
}

// askBoth asks in each family that a pod has.
func (a *asks) askBoth(ctx context.Context, who string, p *node.Pod, to []netip.Addr) {
	for i, own := range p.Addrs {
		for _, t := range to {
			if t.Is4() == own.Is4() {
				a.ask(ctx, who, p.Netns(), port(t), p.Addrs[i])
			}
		}
	}
}

func podsToPods(ctx context.Context, s *stage) (string, error) {
	var a asks
	pairs := 0
	for i, n := range s.nodes {
		for _, other := range []*node.Node{n, s.nodes[(i+1)%len(s.nodes)]} {
			for k, p := range s.pods[n.Name] {
				q := s.pods[other.Name][(k+1)%len(s.pods[other.Name])]
				a.askBoth(ctx, n.Name+"/"+p.Name, p, q.Addrs)
				pairs++
			}
		}
	}
	return a.result("%d pairs of pods, IPv4 and IPv6", pairs)
}

// toOutside asks there and back: nothing is translated anywhere.
func toOutside(ctx context.Context, s *stage) (string, error) {
	var a asks
	outside := []netip.Addr{site.OutsideHost, site.OutsideHost6}
	for _, n := range s.nodes {
		for _, p := range s.pods[n.Name] {
			a.askBoth(ctx, n.Name+"/"+p.Name, p, outside)
			for i, to := range p.Addrs {
				a.ask(ctx, "outside", s.lab.OutsidePath(), port(to), outside[i])
			}
		}
	}
	return a.result("by the router, no NAT")
}

// freeAddress asks from outside for an address of a block that no pod has. A
// node without a route for the whole block would send it back to the router.
func freeAddress(ctx context.Context, s *stage) (string, error) {
	n := s.nodes[0]
	doc, err := lab.Document(ctx, n)
	if err != nil {
		return "", err
	}
	if len(doc.Available) == 0 {
		return "", fmt.Errorf("%s has no free address", n.Name)
	}
	free := doc.Available[0].Address
	one, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	began := time.Now()
	_, err = echo.Ask(one, s.lab.OutsidePath(), "tcp", port(free), netip.Addr{}, "hello")
	if err == nil {
		return "", fmt.Errorf("asked %s, which no pod has, and was answered", free)
	}
	if one.Err() != nil || !errors.Is(err, syscall.EHOSTUNREACH) {
		return "", fmt.Errorf("asked %s, want an ICMP host unreachable: %w", free, err)
	}
	return fmt.Sprintf("%s: no route to host, after %s", free, ms(time.Since(began))), nil
}

// makeNamespace makes a namespace, with an annotation for its pool unless empty.
func (s *stage) makeNamespace(ctx context.Context, name, pool string) error {
	var annotations map[string]string
	if pool != "" {
		annotations = map[string]string{v1alpha1.AnnotationPool: pool}
	}
	return s.lab.Kube.CreateNamespace(ctx, name, annotations)
}

// wants says so unless a pod's first address is of a pool.
func (s *stage) wants(ctx context.Context, n *node.Node, p *node.Pod, pool string) error {
	blocks, err := s.blocksOf(ctx, n, pool)
	if err != nil {
		return err
	}
	for _, b := range blocks {
		if c, err := netip.ParsePrefix(b.IPv4); err == nil && c.Contains(p.Addr()) {
			return nil
		}
	}
	return fmt.Errorf("pod %s has %s, want one of pool %s", p.Name, p.Addr(), pool)
}

func annotatedNamespace(ctx context.Context, s *stage) (string, error) {
	if err := s.makeNamespace(ctx, "edge", publicPool); err != nil {
		return "", err
	}
	n := s.nodes[0]
	p, err := n.AddPod(ctx, "edge", node.PodOptions{Namespace: "edge"})
	if err != nil {
		return "", err
	}
	if err := s.wants(ctx, n, p, publicPool); err != nil {
		return "", err
	}
	var a asks
	err = until(ctx, "the address is announced", func() error {
		a = asks{}
		a.ask(ctx, "outside", s.lab.OutsidePath(), port(p.Addr()), site.OutsideHost)
		return errors.Join(a.errs...)
	})
	if err != nil {
		return "", err
	}
	return a.result("namespace edge: %s of pool %s, a block of one", p.Addr(), publicPool)
}

// annotatedPod chooses a pool by a pod's annotation, in a namespace that the
// pool lists and in one that it does not.
func annotatedPod(ctx context.Context, s *stage) (string, error) {
	if err := s.makeNamespace(ctx, tenant, ""); err != nil {
		return "", err
	}
	n := s.nodes[1]
	chosen := map[string]string{v1alpha1.AnnotationPool: lentPool}
	p, err := n.AddPod(ctx, "chooses", node.PodOptions{Namespace: tenant, Annotations: chosen})
	if err != nil {
		return "", err
	}
	if err := s.wants(ctx, n, p, lentPool); err != nil {
		return "", err
	}
	_, err = n.AddPod(ctx, "may-not", node.PodOptions{Annotations: chosen, Once: true})
	if err == nil {
		return "", fmt.Errorf("a pod of namespace default chose pool %s", lentPool)
	}
	if !strings.Contains(err.Error(), "podNamespaces") {
		return "", fmt.Errorf("a pod of namespace default chose pool %s, want a refusal that names spec.podNamespaces: %w", lentPool, err)
	}
	return fmt.Sprintf("%s of pool %s in namespace %s; refused in default", p.Addr(), lentPool, tenant), nil
}

// poolWithoutAPI kills the API server, makes a pod and removes one.
func poolWithoutAPI(ctx context.Context, s *stage) (string, error) {
	n := s.nodes[2]
	if err := s.lab.BindPods(ctx, n, "no-api"); err != nil {
		return "", err
	}
	// What the daemon hears of comes in order: with this pod it knows the other.
	if _, err := n.AddPod(ctx, "before", node.PodOptions{}); err != nil {
		return "", err
	}
	if err := s.lab.Reported(ctx); err != nil {
		return "", err
	}
	leaving := n.Pods()[0]
	if err := s.lab.Kube.KillAPIServer(); err != nil {
		return "", err
	}
	began := time.Now()
	_, err := n.AddPod(ctx, "no-api", node.PodOptions{})
	added := time.Since(began)
	if err == nil {
		began = time.Now()
		err = n.DelPod(ctx, leaving.Name)
	}
	deleted := time.Since(began)
	if err := errors.Join(err, s.lab.Kube.StartAPIServer(ctx)); err != nil {
		return "", err
	}
	s.pods[n.Name] = n.Pods()
	return fmt.Sprintf("ADD %s, DEL %s without it", ms(added), ms(deleted)), s.recovered(ctx)
}

// killPoolOperator kills the leader and makes more pods than there are
// addresses for.
func killPoolOperator(ctx context.Context, s *stage) (string, error) {
	n := s.nodes[1]
	leader, err := s.leader(ctx)
	if err != nil {
		return "", err
	}
	before, err := s.blocksOf(ctx, n, v1alpha1.DefaultPool)
	if err != nil {
		return "", err
	}
	if err := leader.Kill(); err != nil {
		return "", err
	}
	began := time.Now()
	if err := s.add(ctx, n, names("more", s.size.pods)); err != nil {
		return "", err
	}
	took := time.Since(began)
	after, err := s.blocksOf(ctx, n, v1alpha1.DefaultPool)
	if err != nil {
		return "", err
	}
	if len(after) <= len(before) {
		return "", fmt.Errorf("%s has %d blocks, had %d: nothing was to be cut", n.Name, len(after), len(before))
	}
	if err := errors.Join(revive(leader), s.recovered(ctx)); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s: %d pods, %d more blocks, after %.1f s", n.Name, s.size.pods, len(after)-len(before), took.Seconds()), nil
}

// exhausted takes the last block of a pool, asks for one more, and appends a
// subnet to the pool.
func exhausted(ctx context.Context, s *stage) (string, error) {
	if _, err := s.nodes[1].AddPod(ctx, "edge", node.PodOptions{Namespace: "edge"}); err != nil {
		return "", err
	}
	up := make(chan error, 1)
	go func() {
		_, err := s.nodes[2].AddPod(ctx, "edge", node.PodOptions{Namespace: "edge"})
		up <- err
	}()
	var p *v1alpha1.AddressPool
	err := until(ctx, "the pool is exhausted", func() (err error) {
		if p, err = s.lab.Kube.AddressPool(ctx, publicPool); err != nil {
			return err
		}
		for _, c := range p.Status.Conditions {
			if c.Type == v1alpha1.ConditionExhausted && c.Status == metav1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("its conditions are %+v", p.Status.Conditions)
	})
	if err != nil {
		return "", errors.Join(err, <-up)
	}
	began := time.Now()
	err = s.lab.Kube.EditAddressPool(ctx, publicPool, func(p *v1alpha1.AddressPool) {
		p.Spec.Subnets = append(p.Spec.Subnets, v1alpha1.PoolSubnet{IPv4: "198.51.101.2/31"})
	})
	if err := errors.Join(err, <-up); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d of %d blocks of pool %s given; a third pod up %.1f s after a subnet is appended",
		p.Status.Blocks.Allocated, p.Status.Blocks.Total, publicPool, time.Since(began).Seconds()), nil
}

// blockReturns deletes the pod of a block and follows the block.
func blockReturns(ctx context.Context, s *stage) (string, error) {
	n := s.nodes[2]
	blocks, err := s.blocksOf(ctx, n, publicPool)
	if err != nil {
		return "", err
	}
	if len(blocks) != 1 {
		return "", fmt.Errorf("%s has %d blocks of pool %s, want 1", n.Name, len(blocks), publicPool)
	}
	began := time.Now()
	if err := n.DelPod(ctx, "edge"); err != nil {
		return "", err
	}
	err = until(ctx, "the block goes back", func() error {
		left, err := s.blocksOf(ctx, n, publicPool)
		if err == nil && len(left) > 0 {
			err = errors.New("it is there")
		}
		if err == nil && s.announced(ctx, blocks[0]) == nil {
			err = errors.New("the router still has its route")
		}
		return err
	})
	return fmt.Sprintf("%s %s after %.1f s, 4 of them cooling", blocks[0].Name, blocks[0].IPv4, time.Since(began).Seconds()), err
}

// nodeDeleted deletes the Node of a node that runs, waits longer than a claim
// lasts, and registers it again.
func nodeDeleted(ctx context.Context, s *stage) (string, error) {
	n := s.nodes[1]
	before, err := s.blocksOf(ctx, n, "")
	if err != nil {
		return "", err
	}
	if err := s.lab.RemoveNodeObject(ctx, n.Name); err != nil {
		return "", err
	}
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case <-time.After(claimGrace + 2*time.Second): // what must not happen, would have
	}
	after, err := s.blocksOf(ctx, n, "")
	if err != nil {
		return "", err
	}
	for _, b := range after {
		known := slices.ContainsFunc(before, func(x v1alpha1.AddressBlock) bool { return x.UID == b.UID })
		if !known || b.DeletionTimestamp != nil || b.Status.RenewTime == nil {
			return "", fmt.Errorf("block %s is another, is being deleted, or is not claimed: %+v", b.Name, b.Status)
		}
	}
	if len(after) != len(before) {
		return "", fmt.Errorf("%s has %d blocks, had %d", n.Name, len(after), len(before))
	}
	return fmt.Sprintf("%s keeps its %d blocks, claimed by its daemon", n.Name, len(after)), s.lab.RegisterHost(ctx, n.Name)
}

// nodeGone pulls the plug of a node and deletes its Node.
func nodeGone(ctx context.Context, s *stage) (string, error) {
	n := s.nodes[len(s.nodes)-1]
	blocks, err := s.blocksOf(ctx, n, "")
	if err != nil {
		return "", err
	}
	s.nodes = s.nodes[:len(s.nodes)-1]
	delete(s.pods, n.Name)
	began := time.Now()
	if err := errors.Join(s.lab.RemoveHost(n.Name), s.lab.RemoveNodeObject(ctx, n.Name)); err != nil {
		return "", err
	}
	err = until(ctx, "its blocks are released", func() error {
		left, err := s.blocksOf(ctx, n, "")
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%d are there", len(left))
		}
		return err
	})
	return fmt.Sprintf("%d blocks of %s released after %.1f s without a sign of it", len(blocks), n.Name, time.Since(began).Seconds()), err
}
