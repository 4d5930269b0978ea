// Package pool holds the tests of address pools with all of Berth's programs:
// real berthd and berth-operator processes, a real API server, and a data centre
// whose nodes and router run BIRD.
package pool

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/lab"
	"github.com/berthnet/berth/internal/lab/run/kube"
	"github.com/berthnet/berth/internal/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m, "berth", "berthd", "berth-operator")) }

// Short times, so that a test passes through many lives of an address.
var (
	daemonArgs   = []string{"--cooling-period=1s", "--block-release-delay=1s", "--block-claim-interval=500ms", "--cni-chain=", "--netns-grace=1s", "--repair-interval=5s"}
	operatorArgs = []string{"--block-claim-grace=3s", "--orphan-interval=1s", "--lease-duration=3s", "--renew-deadline=2s", "--retry-period=300ms"}
)

// raise starts a lab with nodes and pools.
func raise(t *testing.T, nodes int, pools ...v1alpha1.AddressPool) *lab.Lab {
	t.Helper()
	return harness.Raise(t, lab.Options{
		Mode: lab.PoolMode, Nodes: nodes, Pools: pools, DaemonArgs: daemonArgs, OperatorArgs: operatorArgs, RestartOperators: true,
	})
}

// patience is for what takes a second on an idle machine.
const patience = 3 * time.Minute

// addAll makes pods on a node, all at once.
func addAll(t *testing.T, n *node.Node, stem string, count int) {
	t.Helper()
	ctx := harness.Deadline(t, patience)
	errs := make([]error, count)
	var wg sync.WaitGroup
	for i := range count {
		wg.Go(func() { _, errs[i] = n.AddPod(ctx, fmt.Sprintf("%s-%d", stem, i), node.PodOptions{}) })
	}
	wg.Wait()
	harness.OK(t, errors.Join(errs...))
}

// delAll removes all pods of a node.
func delAll(t *testing.T, n *node.Node) {
	t.Helper()
	ctx := harness.Deadline(t, patience)
	pods := n.Pods()
	errs := make([]error, len(pods))
	var wg sync.WaitGroup
	for i, p := range pods {
		wg.Go(func() { errs[i] = n.DelPod(ctx, p.Name) })
	}
	wg.Wait()
	harness.OK(t, errors.Join(errs...))
}

// blocks are the blocks of a pool that a node has, by index.
func blocks(t *testing.T, l *lab.Lab, n *node.Node, pool string) []v1alpha1.AddressBlock {
	t.Helper()
	list := &v1alpha1.AddressBlockList{}
	harness.OK(t, kube.Again(ctx(t), "list blocks", func() error { return l.Kube.Client.List(t.Context(), list) }))
	mine := slices.DeleteFunc(list.Items, func(b v1alpha1.AddressBlock) bool { return b.NodeName != n.Name || b.PoolName != pool })
	slices.SortFunc(mine, func(a, b v1alpha1.AddressBlock) int { return int(a.Index - b.Index) })
	return mine
}

// counts waits until a node has so many blocks of a pool.
func counts(t *testing.T, l *lab.Lab, n *node.Node, pool string, want int) {
	t.Helper()
	harness.Eventually(t, patience, fmt.Sprintf("%s has %d blocks of %s", n.Name, want, pool), func() error {
		if got := blocks(t, l, n, pool); len(got) != want {
			return fmt.Errorf("%d: %+v", len(got), got)
		}
		return nil
	})
}

// learned waits until the router forwards to a prefix, or does not.
func learned(t *testing.T, l *lab.Lab, p netip.Prefix, want bool) {
	t.Helper()
	harness.Eventually(t, patience, fmt.Sprintf("route to %s: %t", p, want), func() error {
		routes, err := l.Site.Routes(t.Context())
		if _, ok := routes[p]; err == nil && ok != want {
			err = fmt.Errorf("the router has %v", routes)
		}
		return err
	})
}

// started fails the test if a program was started more than once.
func started(t *testing.T, l *lab.Lab) {
	t.Helper()
	for _, n := range l.Nodes() {
		if n.Starts() != 1 {
			t.Errorf("berthd of %s was started %d times", n.Name, n.Starts())
		}
	}
}

func ctx(t *testing.T) context.Context { return harness.Deadline(t, patience) }
