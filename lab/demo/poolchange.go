package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab/network/site"
	"github.com/berthnet/berth/lab/run/node"
)

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

// poolWithoutAPI serves a node while the API server is away.
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
	served, err := s.serveWithoutAPI(ctx, n, "no-api", n.Pods()[0].Name)
	return served, errors.Join(err, s.recovered(ctx))
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
