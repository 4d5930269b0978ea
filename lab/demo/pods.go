package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/lab/run/node"
)

// onSeveralENIs makes the pods, all at once on every node, and checks that each
// node has some on a secondary ENI.
func onSeveralENIs(ctx context.Context, s *stage) (string, error) {
	took, err := add(ctx, s.nodes, names("pod", s.size.pods))
	if err != nil {
		return "", err
	}
	onPrimary := 0
	for _, n := range s.nodes {
		used := map[int]bool{}
		for _, p := range n.Pods() {
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
	return fmt.Sprintf("%d pods on %d nodes; %s; %d on secondary ENIs", len(took), len(s.nodes), spread(took), len(took)-onPrimary), nil
}

// names are pod names that begin alike: web-1, web-2 and so on.
func names(stem string, count int) []string {
	var out []string
	for i := range count {
		out = append(out, fmt.Sprintf("%s-%d", stem, i+1))
	}
	return out
}

// add makes pods of these names on each node, all at once, and returns how long each
// took, in order.
func add(ctx context.Context, nodes []*node.Node, names []string) ([]time.Duration, error) {
	took, errs := make([]time.Duration, len(nodes)*len(names)), make([]error, len(nodes)*len(names))
	var wg sync.WaitGroup
	for i := range took {
		wg.Go(func() {
			began := time.Now()
			_, errs[i] = nodes[i/len(names)].AddPod(ctx, names[i%len(names)], node.PodOptions{})
			took[i] = time.Since(began)
		})
	}
	wg.Wait()
	slices.Sort(took)
	return took, errors.Join(errs...)
}

// add makes pods on a node, all at once.
func (s *stage) add(ctx context.Context, n *node.Node, names []string) error {
	_, err := add(ctx, []*node.Node{n}, names)
	return err
}

// spread tells of times in order.
func spread(took []time.Duration) string {
	return fmt.Sprintf("ADD median %s, slowest %s", ms(took[len(took)/2]), ms(took[len(took)-1]))
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
	if pods := n.Pods(); len(pods) > 0 {
		return pods[0], nil
	}
	return nil, fmt.Errorf("%s has no pod", n.Name)
}

// onSecondary is a pod of a node that is not on the primary ENI.
func (s *stage) onSecondary(n *node.Node) (*node.Pod, error) {
	for _, p := range n.Pods() {
		if i, err := s.index(n, p.Addr()); err == nil && i > 0 {
			return p, nil
		}
	}
	return nil, fmt.Errorf("%s has no pod on a secondary ENI", n.Name)
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }
