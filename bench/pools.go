package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/bench/blocks"
	"github.com/berthnet/berth/bench/bubble"
	"github.com/berthnet/berth/internal/ipam/block"
	"github.com/berthnet/berth/lab"
)

// Requests for blocks at once, and how often each number is measured: a run
// takes a minute.
const (
	manyRequests, fewRequests = 5000, 1000
	requestTurns              = 3
)

// blockRequests measures what nodes that all ask for a block at once cost the
// operator and the API server.
func blockRequests(ctx context.Context, b *bench) ([]Result, error) {
	return b.blockRequests(ctx, requestTurns, manyRequests, fewRequests)
}

func (b *bench) blockRequests(ctx context.Context, turns, many, few int) ([]Result, error) {
	var cpu [2][]float64
	var served, bare, writes, own, memory []float64
	sizes := []int{many, few}
	if many == few { // a test, for which one cluster is enough
		sizes = sizes[:1]
	}
	for range turns {
		for j, n := range sizes {
			out, err := blocks.Run(ctx, blocks.Order{Nodes: n, BinDir: b.options.binDir, Assets: b.options.assets, Say: say})
			if err != nil {
				return nil, err
			}
			cpu[j] = append(cpu[j], millis(out.CPU)/float64(n))
			if n == many {
				served, bare = append(served, out.Served.Seconds()), append(bare, out.Bare.Seconds())
				memory = append(memory, float64(out.Memory)/mebi)
				own = append(own, float64(out.Writes.Pools()))
				writes = append(writes, float64(out.Writes.Others())/float64(n))
			}
		}
	}
	return []Result{
		ratio(fmt.Sprintf("pool-requests-%d", many), "s", served, bare),
		ratio("pool-requests-writes", "writes/block", writes, []float64{2}),
		ratio("pool-requests-cpu", "ms/request", cpu[0], cpu[len(sizes)-1]),
		measured("pool-requests-memory", "MiB", memory...),
		measured("pool-requests-status", "writes of the pool", own...),
	}, nil
}

// A pool of 1,048,576 blocks of 16 addresses, and how many of them are taken.
const (
	wideBits             = 4
	wide                 = "10.0.0.0/8"
	muchTaken, someTaken = 1_000_000, 1_000
)

// poolBook measures what the operator keeps of a pool's blocks, and what it
// takes to cut one more.
func poolBook(context.Context, *bench) ([]Result, error) {
	layout, err := block.Parse(wideBits, []block.Subnet{{IPv4: netip.MustParsePrefix(wide)}})
	if err != nil {
		return nil, err
	}
	empty := bubble.LiveHeap()
	many := taken(muchTaken)
	memory := bubble.LiveHeap() - empty
	few, full := taken(someTaken), taken(layout.Blocks())

	all, err := rounds(200, func(_ int, note note) error {
		for _, f := range []struct {
			of     string
			carver *block.Carver
			carve  func(*block.Carver, block.Layout) (float64, error)
		}{
			{"usual, many", many, carve}, {"usual, few", few, carve},
			{"last, all", full, carveAgain}, {"last, few", few, carveAgain},
		} {
			took, err := f.carve(f.carver, layout)
			if err != nil {
				return err
			}
			note(f.of, took)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return []Result{
		single("pool-book-memory", "MiB", float64(memory)/mebi, 0),
		ratio("pool-carve", "ns", all["usual, many"], all["usual, few"]),
		ratio("pool-carve-last", "ns", all["last, all"], all["last, few"]),
	}, nil
}

// taken is a Carver of which the first n indexes are.
func taken(n int64) *block.Carver {
	c := block.NewCarver(0)
	for range n {
		c.Take(n)
	}
	return c
}

// carves is how many blocks are cut between two looks at the clock.
const carves = 1000

// carve cuts blocks, one after the other, and gives them back afterwards. It
// returns how many nanoseconds one took.
func carve(c *block.Carver, l block.Layout) (float64, error) {
	first, limit := c.Next(), l.Blocks()
	start := time.Now()
	for range carves {
		if err := carveOne(c, l, limit); err != nil {
			return 0, err
		}
	}
	took := time.Since(start)
	for i := first; i < c.Next(); i++ {
		c.Free(i)
	}
	c.Resume(first)
	return float64(took.Nanoseconds()) / carves, nil
}

// carveAgain gives back one block and cuts it again, as it is the only one that
// the pool has free. It returns how many nanoseconds that takes.
func carveAgain(c *block.Carver, l block.Layout) (float64, error) {
	limit, only := c.Taken(), c.Taken()/2
	start := time.Now()
	for range carves {
		c.Free(only)
		if err := carveOne(c, l, limit); err != nil {
			return 0, err
		}
	}
	return float64(time.Since(start).Nanoseconds()) / carves, nil
}

func carveOne(c *block.Carver, l block.Layout, limit int64) error {
	i, ok := c.Take(limit)
	if !ok {
		return fmt.Errorf("of %d blocks %d are taken, and no other is found", limit, c.Taken())
	}
	_, err := l.Block(i)
	return err
}

// poolAdds measures ADD and DEL as execs and daemonAdd do, with berthd in pool
// mode and a block that it has: the API server has no part in them.
func poolAdds(ctx context.Context, b *bench) ([]Result, error) {
	s, err := b.bed.execs(ctx, func(int, note) error { return nil })
	if err != nil {
		return nil, err
	}
	daemon, err := b.bed.daemonAdd(ctx, "pool-daemon-add")
	return append(execResults(s, "pool-exec-add", "pool-exec-del"), daemon...), err
}

// podNamespace is that of the bench's only Pod.
const podNamespace = metav1.NamespaceDefault

// raisePoolMode raises a lab of address pools with one node, that has a block with
// more addresses than are measured with, and a Pod.
func (b *testbed) raisePoolMode(ctx context.Context) (err error) {
	say("raising a lab of address pools with one node")
	const bits = 10
	b.lab, err = lab.Start(ctx, lab.Options{
		Dir: b.dirs.run, ID: fmt.Sprintf("bench%d", os.Getpid()), BinDir: b.options.binDir, KubeAssets: b.options.assets,
		Mode: lab.PoolMode, Nodes: 1, Pools: []v1alpha1.AddressPool{lab.Pool(v1alpha1.DefaultPool, bits, v1alpha1.PoolSubnet{IPv4: "10.2.0.0/16"})},
		DaemonArgs: benchDaemonArgs, OperatorArgs: []string{"--leader-elect=false", "--log-level=warn"},
	})
	if err != nil {
		return fmt.Errorf("raise a lab: %w", err)
	}
	b.few, b.podName = b.lab.Nodes()[0], "bench"
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: podNamespace, Name: b.podName}}
	p.Spec = corev1.PodSpec{NodeName: b.few.Name, Containers: []corev1.Container{{Name: "bench", Image: "bench"}}}
	if err := b.lab.Kube.Client.Create(ctx, p); err != nil {
		return fmt.Errorf("make a Pod: %w", err)
	}
	return waitWarm(ctx, b.few, 1<<bits)
}
