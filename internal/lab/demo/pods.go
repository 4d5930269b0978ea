package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/lab/run/node"
)

// bringUp makes the pods, all at once on every node, and checks that each node
// has some on a secondary ENI.
func bringUp(ctx context.Context, s *stage) (string, error) {
	var mu sync.Mutex // guards took and errs
	var took []time.Duration
	var errs []error
	var wg sync.WaitGroup
	for _, n := range s.nodes {
		for i := range s.size.pods {
			wg.Go(func() {
				began := time.Now()
				_, err := n.AddPod(ctx, fmt.Sprintf("pod-%d", i+1), node.PodOptions{})
				mu.Lock()
				defer mu.Unlock()
				took = append(took, time.Since(began))
				errs = append(errs, err)
			})
		}
	}
	wg.Wait()
	for _, n := range s.nodes {
		s.pods[n.Name] = n.Pods()
	}
	if err := errors.Join(errs...); err != nil {
		return "", err
	}
	onPrimary := 0
	for _, n := range s.nodes {
		used := map[int]bool{}
		for _, p := range s.pods[n.Name] {
			i, err := s.index(n, p.Addr())
			if err != nil {
				return "", err
			}
			if i == 0 {
				onPrimary++
			}
			used[i] = true
		}
		if len(used) < 2 {
			return "", fmt.Errorf("all pods of %s are on one ENI; %d were to need a second one", n.Name, s.size.pods)
		}
	}
	slices.Sort(took)
	return fmt.Sprintf("%d pods on %d nodes; ADD median %s, slowest %s; %d on secondary ENIs",
		len(took), len(s.nodes), ms(took[len(took)/2]), ms(took[len(took)-1]), len(took)-onPrimary), nil
}

// names are pod names that begin alike: web-1, web-2 and so on.
func names(stem string, count int) []string {
	var out []string
	for i := range count {
		out = append(out, fmt.Sprintf("%s-%d", stem, i+1))
	}
	return out
}

// add makes pods on a node, all at once.
func (s *stage) add(ctx context.Context, n *node.Node, names []string) error {
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() { _, errs[i] = n.AddPod(ctx, name, node.PodOptions{}) })
	}
	wg.Wait()
	s.pods[n.Name] = n.Pods()
	return errors.Join(errs...)
}

// index is the device index of the ENI that has an address.
func (s *stage) index(n *node.Node, a netip.Addr) (int, error) {
	for _, e := range s.lab.Books().InstanceENIs(n.InstanceID) {
		if e.Owns(a) {
			return e.Attachment.DeviceIndex, nil
		}
	}
	return 0, fmt.Errorf("EC2 has not assigned %s to %s", a, n.Name)
}

// first is a pod of a node.
func (s *stage) first(n *node.Node) (*node.Pod, error) {
	if pods := s.pods[n.Name]; len(pods) > 0 {
		return pods[0], nil
	}
	return nil, fmt.Errorf("%s has no pod", n.Name)
}

// onSecondary is a pod of a node that is not on the primary ENI.
func (s *stage) onSecondary(n *node.Node) (*node.Pod, error) {
	for _, p := range s.pods[n.Name] {
		if i, err := s.index(n, p.Addr()); err == nil && i > 0 {
			return p, nil
		}
	}
	return nil, fmt.Errorf("%s has no pod on a secondary ENI", n.Name)
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }
