package crash

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/failpoint"
	_ "github.com/berthnet/berth/internal/operator/addresspool" // registers its failpoints
	_ "github.com/berthnet/berth/internal/source/pool"          // likewise
	"github.com/berthnet/berth/internal/vpclab/lab"
	"github.com/berthnet/berth/test/harness"
)

// raisePools starts a lab in pool mode. Blocks hold four pods, so that they come
// and go all the time, and the pool has room for a few blocks more than the
// nodes need at most.
func raisePools(t *testing.T, nodes, operators int) *lab.Lab {
	return harness.Raise(t, lab.Options{
		Mode: lab.PoolMode, Nodes: nodes, OperatorCount: operators,
		Pools: []v1alpha1.AddressPool{lab.Pool(v1alpha1.DefaultPool, 2, v1alpha1.PoolSubnet{IPv4: "10.2.0.0/26", IPv6: "fd02::/122"})},
		OperatorArgs: append([]string{
			"--block-claim-grace=20s", "--orphan-interval=1s", "--log-level=debug",
		}, leases(operators)...),
		DaemonArgs: []string{
			"--block-release-delay=300ms", "--cni-chain=", "--log-level=debug", "--cooling-period=" + cooling.String(),
			"--netns-grace=1s", "--repair-interval=1s", "--warm-wait=5s",
		},
	})
}

// poolPods is how many pods a node is asked for at most.
const poolPods = 10

func poolFailpoints(prefix string) []string {
	return slices.DeleteFunc(failpoint.Names(), func(name string) bool { return !strings.HasPrefix(name, prefix) })
}

// returned waits until every node is back to its one warm block.
func returned(ctx context.Context, l *lab.Lab) error {
	return eventually(ctx, func() error {
		list := &v1alpha1.AddressBlockList{}
		if err := l.Kube.Client.List(ctx, list); err != nil {
			return err
		}
		have := map[string]int{}
		for _, b := range list.Items {
			have[b.NodeName]++
		}
		var errs []error
		for _, n := range l.Nodes() {
			if have[n.Name] != 1 {
				errs = append(errs, fmt.Errorf("%s has %d blocks, expected the warm one alone", n.Name, have[n.Name]))
			}
		}
		return errors.Join(errs...)
	})
}

// TestKillAtEveryPoolFailpoint kills the daemon, or the only operator, with
// SIGKILL at every step of asking for a block, cutting, serving, draining and
// returning it in turn. After the restart the API's objects, the kernel, what the
// router has learned and the pods must agree, and after the last pod every node
// must be back to its one warm block.
func TestKillAtEveryPoolFailpoint(t *testing.T) {
	t.Parallel() // most of the time it waits for a process to start

	l := raisePools(t, 2, 1)
	book := newLedger()
	// What of the operator needs a pool or a node to go is in its own tests.
	for prefix, want := range map[string]int{"pool.": 8, "operator.pool.accept.": 2, "operator.pool.cut.": 2, "operator.pool.answer.": 1} {
		names := poolFailpoints(prefix)
		if len(names) < want {
			t.Fatalf("only %d failpoints %s are registered: %v", len(names), prefix, names)
		}
		for _, name := range names {
			if !t.Run(name, func(t *testing.T) { killPoolAt(t, l, book, name) }) {
				return // the lab is no longer what the next one expects
			}
		}
	}
}

func killPoolAt(t *testing.T, l *lab.Lab, book *ledger, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	n, o := l.Nodes()[0], l.Operators()[0]
	victim := n.Process
	arms := func(env map[string]string) { n.Env = env }
	if strings.HasPrefix(name, "operator.") {
		victim = o.Process
		arms = func(env map[string]string) { l.OperatorEnv = env }
	}
	if err := victim.Stop(patience); err != nil {
		t.Fatal(err)
	}
	if strings.HasPrefix(name, "operator.pool.accept.") {
		another := lab.Pool("another-"+strings.TrimPrefix(name, "operator.pool.accept."), 2, v1alpha1.PoolSubnet{IPv4: fmt.Sprintf("10.3.%d.0/26", len(name))})
		if err := l.Kube.Client.Create(ctx, &another); err != nil {
			t.Fatal(err)
		}
	}
	arms(map[string]string{failpoint.EnvVar: name + "=kill"})
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	died := victim.Exited()
	restarted := make(chan error, 1)
	go func() {
		select {
		case <-died:
			arms(nil)
			restarted <- victim.Start()
		case <-ctx.Done():
			restarted <- fmt.Errorf("failpoint %s was never reached", name)
		}
	}()
	exercise(ctx, t, book, n, poolPods)
	if err := <-restarted; err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(n.WaitReady(ctx), o.WaitReady(ctx)); err != nil {
		t.Fatal(err)
	}
	if err := returned(ctx, l); err != nil {
		t.Fatalf("blocks do not go back: %v", err)
	}
	harness.Settle(t, l)
}

// TestPoolSoak makes and removes pods at random on three nodes while daemons and
// two operators are killed or stand still, and the API server dies. Double use of
// an address is seen at once; at the end pools, blocks, the nodes, the router and
// their pods must agree, and every node must be back to its one warm block.
func TestPoolSoak(t *testing.T) {
	t.Parallel()

	seed := fromEnv(t, "BERTH_SOAK_SEED", uint64(time.Now().UnixNano()))
	ops := int(fromEnv(t, "BERTH_SOAK_OPS", 400))
	fmt.Printf("pool soak: BERTH_SOAK_SEED=%d BERTH_SOAK_OPS=%d\n", seed, ops)

	l := raisePools(t, 3, 2)
	book := newLedger()
	ctx, cancel := context.WithTimeout(context.Background(), soakPatience)
	defer cancel()

	stop := make(chan struct{})
	var trouble, workers sync.WaitGroup
	m := &meddler{
		t: t, lab: l, dice: rand.New(rand.NewPCG(seed, 0)), stop: stop,
		operator: poolFailpoints("operator.pool."), daemon: slices.Concat(daemonFailpoints(), poolFailpoints("pool.")),
	}
	trouble.Go(func() { m.run(ctx) })
	for i, n := range l.Nodes() {
		workers.Go(func() {
			s := &soaker{node: n, late: time.Now().Add(soakLong), book: book, dice: rand.New(rand.NewPCG(seed, uint64(i+1))), most: poolPods}
			s.run(ctx, t, ops/len(l.Nodes()))
		})
	}
	workers.Wait()
	close(stop)
	trouble.Wait()

	harness.Settle(t, l)
	for _, n := range l.Nodes() {
		for _, p := range n.Pods() {
			if err := book.del(ctx, n, p.Name); err != nil {
				t.Error(err)
			}
		}
	}
	if err := returned(ctx, l); err != nil {
		t.Fatalf("blocks do not go back: %v", err)
	}
	harness.Settle(t, l)
	fmt.Printf("pool soak: %d pods made, %d removed; %s\n", book.adds, book.dels, m.tally())
	if book.adds < ops/4 {
		t.Errorf("the soak did too little: %d pods in %d operations", book.adds, ops)
	}
}
