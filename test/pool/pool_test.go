package pool

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/lab"
	"github.com/berthnet/berth/internal/lab/network/site"
	"github.com/berthnet/berth/internal/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// Pods of three nodes reach each other, the nodes and the outside with their own
// addresses in both families, by what BIRD has announced; a block that goes back
// is withdrawn.
func TestRoutedByBIRD(t *testing.T) {
	t.Parallel()
	for name, subnet := range map[string]v1alpha1.PoolSubnet{
		"dual": {IPv4: "10.2.0.0/16", IPv6: "fd02::/112"},
		"ipv4": {IPv4: "10.2.0.0/16"},
		"ipv6": {IPv6: "fd02::/112"},
	} {
		t.Run(name, func(t *testing.T) {
			l := raise(t, 3, lab.Pool(v1alpha1.DefaultPool, 2, subnet))
			nodes := l.Nodes()
			pods := map[string]*node.Pod{}
			for _, n := range nodes {
				addAll(t, n, "pod", 5)
				p, err := n.Pod("pod-0")
				harness.OK(t, err)
				pods[n.Name] = p
			}
			harness.Settle(t, l)
			for i, n := range nodes {
				p, other := pods[n.Name], nodes[(i+1)%len(nodes)]
				for k, own := range p.Addrs {
					outside, far := site.OutsideHost, l.Site.Addrs(other.Name).IPv4
					if own.Is6() {
						outside, far = site.OutsideHost6, l.Site.Addrs(other.Name).IPv6
					}
					harness.OK(t, errors.Join(
						harness.Asks(t, p.Netns(), pods[other.Name].Addrs[k], own),
						harness.Asks(t, p.Netns(), far, own),
						harness.Asks(t, p.Netns(), outside, own),
						harness.Asks(t, l.OutsidePath(), own, outside),
						harness.Asks(t, other.Netns, own, far),
					))
				}
			}
			n := nodes[0]
			gone := blocks(t, l, n, v1alpha1.DefaultPool)
			delAll(t, n)
			counts(t, l, n, v1alpha1.DefaultPool, 1) // the warm one
			kept := blocks(t, l, n, v1alpha1.DefaultPool)[0].Name
			for _, b := range gone {
				for _, text := range []string{b.IPv4, b.IPv6} {
					if p, err := netip.ParsePrefix(text); err == nil {
						learned(t, l, p, b.Name == kept)
					}
				}
			}
			harness.Settle(t, l)
			started(t, l)
		})
	}
}

// A hundred ADDs at once on a node with nothing allocated, with the operator
// killed in the middle: each gets its address, no block too many is left.
func TestHundredAtOnce(t *testing.T) {
	t.Parallel()
	l := raise(t, 1, lab.Pool(v1alpha1.DefaultPool, 3, v1alpha1.PoolSubnet{IPv4: "10.2.0.0/22", IPv6: "fd02::/118"}))
	n, o := l.Nodes()[0], l.Operators()[0]
	done := make(chan struct{})
	go func() {
		defer close(done)
		addAll(t, n, "pod", 100)
	}()
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
	<-done
	// One that was asked for and not needed any more goes back in a while.
	harness.Eventually(t, patience, "no block too many", func() error {
		if got := len(blocks(t, l, n, v1alpha1.DefaultPool)); got < 13 || got > 14 {
			return fmt.Errorf("%d blocks of 8 for 100 pods, want 13, or 14 with a warm one", got)
		}
		return nil
	})
	harness.Settle(t, l)
	delAll(t, n)
	counts(t, l, n, v1alpha1.DefaultPool, 1)
	harness.Settle(t, l)
}

// With blocks of one address: a pod goes while the API server is away, another
// gets its address and so its block, and the DEL of the first is repeated. The
// block stays the second one's. Another pod chooses a pool by its annotation, of
// which the runtime tells.
func TestBlockOfOne(t *testing.T) {
	t.Parallel()
	lent := lab.Pool("lent", 0, v1alpha1.PoolSubnet{IPv4: "10.4.1.0/32"})
	lent.Spec.PodNamespaces = []string{"default"}
	l := raise(t, 1, lab.Pool(v1alpha1.DefaultPool, 0, v1alpha1.PoolSubnet{IPv4: "10.4.0.0/31"}), lent)
	n := l.Nodes()[0]
	// Nobody binds pods while the API server is away.
	harness.OK(t, l.BindPods(ctx(t), n, "b"))
	a, err := n.AddPod(ctx(t), "a", node.PodOptions{})
	harness.OK(t, err)
	harness.OK(t, l.Reported(ctx(t)))
	harness.OK(t, l.Kube.KillAPIServer())
	harness.OK(t, n.DelPod(ctx(t), "a"))
	b, err := n.AddPod(ctx(t), "b", node.PodOptions{})
	harness.OK(t, err)
	if b.Addr() != a.Addr() {
		t.Fatalf("b has %s, want %s, which is all that the node has", b.Addr(), a.Addr())
	}
	harness.OK(t, n.DelAgain(ctx(t), a))
	harness.OK(t, l.Kube.StartAPIServer(ctx(t)))
	harness.OK(t, n.DelAgain(ctx(t), a))
	_, err = n.AddPod(ctx(t), "c", node.PodOptions{}) // the daemon has heard of the API server again
	harness.OK(t, err)
	harness.OK(t, n.DelAgain(ctx(t), a))
	harness.Settle(t, l)
	if got := blocks(t, l, n, v1alpha1.DefaultPool); len(got) != 2 {
		t.Errorf("blocks %+v, want b's and c's", got)
	}
	harness.OK(t, n.CheckPod(ctx(t), "b"))
	harness.OK(t, n.DelPod(ctx(t), "c"))
	counts(t, l, n, v1alpha1.DefaultPool, 1)
	harness.OK(t, n.CheckPod(ctx(t), "b"))
	chooser, err := n.AddPod(ctx(t), "chooser", node.PodOptions{Annotations: map[string]string{v1alpha1.AnnotationPool: "lent"}})
	harness.OK(t, err)
	if chooser.Addr().String() != "10.4.1.0" {
		t.Errorf("the pod that chose has %s, want 10.4.1.0", chooser.Addr())
	}
	harness.Settle(t, l)
}

// Two operators that both work, as if neither knew of the other, cut no block
// twice and lose no request.
func TestTwoOperatorsAtOnce(t *testing.T) {
	t.Parallel()
	l := harness.Raise(t, lab.Options{
		Mode: lab.PoolMode, Nodes: 3, OperatorCount: 2, RestartOperators: true, DaemonArgs: daemonArgs, OperatorArgs: append([]string{"--leader-elect=false"}, operatorArgs...),
		Pools: []v1alpha1.AddressPool{lab.Pool(v1alpha1.DefaultPool, 1, v1alpha1.PoolSubnet{IPv4: "10.2.0.0/25", IPv6: "fd02::/121"})},
	})
	for range 2 {
		done := make(chan struct{})
		for _, n := range l.Nodes() {
			go func() {
				defer func() { done <- struct{}{} }()
				addAll(t, n, "pod", 20)
			}()
		}
		for range l.Nodes() {
			<-done
		}
		harness.Settle(t, l)
		for _, n := range l.Nodes() {
			delAll(t, n)
		}
		for _, n := range l.Nodes() {
			counts(t, l, n, v1alpha1.DefaultPool, 0) // a quarter of two addresses is no warm one
		}
		harness.Settle(t, l)
	}
	harness.Eventually(t, patience, "the pool counts no block", func() error {
		p := &v1alpha1.AddressPool{}
		err := l.Kube.Client.Get(ctx(t), client.ObjectKey{Name: v1alpha1.DefaultPool}, p)
		if err == nil && p.Status.Blocks.Allocated != 0 {
			err = fmt.Errorf("counts %+v", p.Status.Blocks)
		}
		return err
	})
}

// A daemon that ends leaves its blocks announced, since its pods live on, unless
// it was told to withdraw them.
func TestWithdrawOnExit(t *testing.T) {
	t.Parallel()
	l := raise(t, 1, lab.Pool(v1alpha1.DefaultPool, 2, v1alpha1.PoolSubnet{IPv4: "10.2.0.0/28"}))
	n := l.Nodes()[0]
	addAll(t, n, "pod", 1)
	harness.Settle(t, l)
	block := netip.MustParsePrefix(blocks(t, l, n, v1alpha1.DefaultPool)[0].IPv4)
	harness.OK(t, n.Stop(patience))
	learned(t, l, block, true)
	harness.OK(t, errors.Join(n.Start("--withdraw-on-exit"), n.WaitReady(ctx(t))))
	harness.OK(t, n.Stop(patience))
	learned(t, l, block, false)
	harness.OK(t, errors.Join(n.Start(), n.WaitReady(ctx(t))))
	learned(t, l, block, true)
	harness.Settle(t, l)
}
