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

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/network/echo"
	"github.com/berthnet/berth/lab/network/site"
	"github.com/berthnet/berth/lab/run/node"
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

// fromSeveralBlocks makes the pods, all at once on every node: more than one block holds.
func fromSeveralBlocks(ctx context.Context, s *stage) (string, error) {
	took, err := add(ctx, s.nodes, names("pod", s.size.pods))
	if err != nil {
		return "", err
	}
	total := 0
	for _, n := range s.nodes {
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
	return fmt.Sprintf("%d dual-stack pods on %d nodes from %d blocks; %s", len(took), len(s.nodes), total, spread(took)), nil
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
			for k, p := range n.Pods() {
				q := other.Pods()[(k+1)%len(other.Pods())]
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
		for _, p := range n.Pods() {
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
