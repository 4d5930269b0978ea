package labs

import (
	"fmt"
	"testing"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// TestHundredPodsAtOnce sends a hundred ADDs to a node without blocks, and kills the operator
// meanwhile: each pod gets an address, and no surplus block stays.
func TestHundredPodsAtOnce(t *testing.T) {
	t.Parallel()
	harness.Rotate(t, 0, 6)
	l := harness.RaiseQuick(t, lab.PoolMode, lab.Options{
		Nodes: 1, Pools: []v1alpha1.AddressPool{lab.Pool(v1alpha1.DefaultPool, 3, v1alpha1.PoolSubnet{IPv4: "10.2.0.0/22", IPv6: "fd02::/118"})},
		OperatorArgs: []string{"--lease-duration=3s", "--renew-deadline=2s", "--retry-period=300ms"}, RestartOperators: true,
	})
	n, o := l.Nodes()[0], l.Operators()[0]
	added := make(chan error, 1)
	go func() { added <- harness.AddMany(t, n, "pod", 100, node.PodOptions{}) }()
	harness.Eventually(t, patience, "some pods are up", func() error {
		if got := len(n.Pods()); got < 20 {
			return fmt.Errorf("%d", got)
		}
		return nil
	})
	harness.OK(t, o.Kill())
	if err := o.Start(); err != nil && !o.Running() { // the lab restarts one that lost its Lease before
		t.Fatal(err)
	}
	harness.OK(t, <-added)
	// A surplus block is released after a while.
	harness.Eventually(t, patience, "no block too many", func() error {
		if got := len(harness.Blocks(t, l, n)); got < 13 || got > 14 {
			return fmt.Errorf("%d blocks of 8 for 100 pods, want 13, or 14 with a warm one", got)
		}
		return nil
	})
	harness.Settle(t, l)
	harness.RemoveAll(t, n)
	harness.HasBlocks(t, l, n, 1)
	harness.Settle(t, l)
}

// TestBlocksOfOneAddress removes a pod while the API server is away, and another gets its address and
// so its block. A repeated DEL of the first does not release it. A further pod chooses a pool by its
// annotation.
func TestBlocksOfOneAddress(t *testing.T) {
	t.Parallel()
	harness.Rotate(t, 1, 5)
	lent := lab.Pool("lent", 0, v1alpha1.PoolSubnet{IPv4: "10.4.1.0/32"})
	lent.Spec.PodNamespaces = []string{"default"}
	l := harness.RaiseQuick(t, lab.PoolMode, lab.Options{Nodes: 1, Pools: []v1alpha1.AddressPool{lab.Pool(v1alpha1.DefaultPool, 0, v1alpha1.PoolSubnet{IPv4: "10.4.0.0/31"}), lent}})
	n := l.Nodes()[0]
	// No pod can be bound while the API server is away.
	harness.OK(t, lab.BindPods(harness.Deadline(t, patience), n, "b"))
	a := harness.Add(t, n, "a")
	harness.OK(t, l.WaitReports(harness.Deadline(t, patience)))
	harness.OK(t, l.Kube.KillAPIServer())
	harness.Remove(t, n, "a")
	b := harness.Add(t, n, "b")
	if b.Addr() != a.Addr() {
		t.Fatalf("b has %s, want %s, which is all that the node has", b.Addr(), a.Addr())
	}
	harness.OK(t, n.DelAgain(harness.Deadline(t, patience), a))
	harness.OK(t, l.Kube.StartAPIServer(harness.Deadline(t, patience)))
	harness.OK(t, n.DelAgain(harness.Deadline(t, patience), a))
	harness.Add(t, n, "c") // the daemon has heard of the API server again
	harness.OK(t, n.DelAgain(harness.Deadline(t, patience), a))
	harness.Settle(t, l)
	if got := harness.Blocks(t, l, n); len(got) != 2 {
		t.Errorf("blocks %+v, want b's and c's", got)
	}
	harness.OK(t, n.CheckPod(harness.Deadline(t, patience), "b"))
	harness.Remove(t, n, "c")
	harness.HasBlocks(t, l, n, 1)
	harness.OK(t, n.CheckPod(harness.Deadline(t, patience), "b"))
	chooser, err := n.AddPod(harness.Deadline(t, patience), "chooser", node.PodOptions{Annotations: map[string]string{v1alpha1.AnnotationPool: "lent"}})
	harness.OK(t, err)
	if chooser.Addr().String() != "10.4.1.0" {
		t.Errorf("the pod that chose has %s, want 10.4.1.0", chooser.Addr())
	}
	harness.Settle(t, l)
}
