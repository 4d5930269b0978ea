package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/bench/blocks"
	"github.com/berthnet/berth/bench/bubble"
	"github.com/berthnet/berth/bench/must"
	"github.com/berthnet/berth/internal/ipam/block"
	"github.com/berthnet/berth/lab"
)

// Numbers of simultaneous block requests, and how often each is measured: a run takes a minute.
const (
	manyRequests, fewRequests = 5000, 1000
	requestTurns              = 3
)

// blockRequests measures the cost of simultaneous block requests for the operator and the API server.
func blockRequests(ctx context.Context, b *bench) []Result {
	return b.blockRequests(ctx, requestTurns, manyRequests, fewRequests)
}

func (b *bench) blockRequests(ctx context.Context, turns, many, few int) []Result {
	s := series{}
	sizes := []int{many, few}
	if many == few { // tests use one cluster size only
		sizes = sizes[:1]
	}
	for range turns {
		for _, n := range sizes {
			out := must.Get(blocks.Run(ctx, blocks.Order{Nodes: n, BinDir: b.options.binDir, Assets: b.options.assets, Say: say}))
			s.add(fmt.Sprint("cpu ", n), millis(out.CPU)/float64(n))
			if n == many {
				s.add("served", out.Served.Seconds())
				s.add("bare", out.Bare.Seconds())
				s.add("memory", float64(out.Memory)/mebi)
				s.add("own", float64(out.Writes.Pools()))
				s.add("writes", float64(out.Writes.Others())/float64(n))
			}
		}
	}
	return []Result{
		s.ratio(fmt.Sprintf("pool-requests-%d", many), "s", "served", "bare"),
		ratio("pool-requests-writes", "writes/block", s["writes"], []float64{2}),
		s.ratio("pool-requests-cpu", "ms/request", fmt.Sprint("cpu ", many), fmt.Sprint("cpu ", few)),
		measured("pool-requests-memory", "MiB", s["memory"]...),
		measured("pool-requests-status", "writes of the pool", s["own"]...),
	}
}

// Clusters that nodes join, with ten blocks on each of their nodes.
const manyWithBlocks, fewWithBlocks, blocksOfNode, joining = 10_000, 100, 10, 1000

// fullPools measures the operator's CPU time for a block, and its memory, in a cluster with many blocks.
func fullPools(ctx context.Context, b *bench) []Result {
	s := series{}
	for range requestTurns {
		for _, n := range []int{manyWithBlocks, fewWithBlocks} {
			out := must.Get(blocks.FullJob.Run(ctx, blocks.FullOrder{Nodes: n, BlocksOfNode: blocksOfNode, Joining: joining}, b.profile(fmt.Sprintf("pool-%d", n))))
			say("  %d nodes with %d blocks: %v of CPU for %d requests, %d MiB of heap", n, n*blocksOfNode, out.CPU, joining, out.Heap>>20)
			s.add(fmt.Sprint("cpu ", n), millis(out.CPU)/joining)
			s.add(fmt.Sprint("heap ", n), float64(out.Heap)/1024/float64(n*blocksOfNode))
		}
	}
	return []Result{
		s.ratio("pool-full-cpu", "ms/request", fmt.Sprint("cpu ", manyWithBlocks), fmt.Sprint("cpu ", fewWithBlocks)),
		measured("pool-full-memory", "KiB/block", s[fmt.Sprint("heap ", manyWithBlocks)]...),
	}
}

// A pool of 1,048,576 blocks of 16 addresses, and how many of them are allocated.
const (
	wideBits             = 4
	wide                 = "10.0.0.0/8"
	muchTaken, someTaken = 1_000_000, 1_000
)

// poolAllocation measures the operator's memory for a pool's blocks, and the time to allocate one more.
func poolAllocation(context.Context, *bench) []Result {
	layout := must.Get(block.Parse(wideBits, []block.Subnet{{IPv4: netip.MustParsePrefix(wide)}}))
	empty := bubble.LiveHeap()
	many := taken(muchTaken)
	memory := bubble.LiveHeap() - empty
	few, full := taken(someTaken), taken(layout.Blocks())
	s := rounds(200, func(_ int, note note) {
		note("usual, many", carve(many, layout))
		note("usual, few", carve(few, layout))
		note("last, all", carveAgain(full, layout))
		note("last, few", carveAgain(few, layout))
	})
	return []Result{
		single("pool-book-memory", "MiB", float64(memory)/mebi, 0),
		s.ratio("pool-carve", "ns", "usual, many", "usual, few"),
		s.ratio("pool-carve-last", "ns", "last, all", "last, few"),
	}
}

// taken returns a Carver whose first n indexes are taken.
func taken(n int64) *block.Carver {
	c := block.NewCarver(0)
	for range n {
		c.Take(n)
	}
	return c
}

// carves is the number of blocks allocated between two readings of the clock.
const carves = 1000

// carve allocates blocks, one after the other, and frees them afterwards. It returns the nanoseconds per
// block.
func carve(c *block.Carver, l block.Layout) float64 {
	first, limit := c.Next(), l.Blocks()
	start := time.Now()
	for range carves {
		must.OK(carveOne(c, l, limit))
	}
	took := time.Since(start)
	for i := first; i < c.Next(); i++ {
		c.Free(i)
	}
	c.Resume(first)
	return float64(took.Nanoseconds()) / carves
}

// carveAgain frees one block and allocates it again, as the only free one of the pool. It returns the
// nanoseconds per block.
func carveAgain(c *block.Carver, l block.Layout) float64 {
	limit, only := c.Taken(), c.Taken()/2
	start := time.Now()
	for range carves {
		c.Free(only)
		must.OK(carveOne(c, l, limit))
	}
	return float64(time.Since(start).Nanoseconds()) / carves
}

func carveOne(c *block.Carver, l block.Layout, limit int64) error {
	i, ok := c.Take(limit)
	if !ok {
		return fmt.Errorf("no free block found, although %[2]d of %[1]d are allocated", limit, c.Taken())
	}
	_, err := l.Block(i)
	return err
}

// poolAdds measures ADD and DEL as execs and daemonAdds do, with berthd in pool mode and a
// block that it already has, so that the API server is not involved.
func poolAdds(ctx context.Context, b *bench) []Result {
	s := b.bed.execs(ctx, b.options.rounds, func(int, note) {})
	return append(execResults(s, "pool-"), b.bed.daemonAdds(ctx, "pool-daemon-add")...)
}

// raisePoolMode starts a lab in pool mode with one node, which has a Pod and a block with more addresses
// than the measurements need.
func (b *testbed) raisePoolMode(ctx context.Context) {
	say("starting a lab in pool mode with one node")
	const bits = 10
	b.start(ctx, lab.Options{
		Mode: lab.PoolMode, Nodes: 1, Pools: []v1alpha1.AddressPool{lab.Pool(v1alpha1.DefaultPool, bits, v1alpha1.PoolSubnet{IPv4: "10.2.0.0/16"})},
		DaemonArgs: []string{"--cooling-period=1s"}, OperatorArgs: []string{"--leader-elect=false"},
	})
	b.podName = b.benchPod(ctx, podNamespace, "bench", nil).Name
	waitWarm(ctx, b.few, 1<<bits)
	b.installBoth()
}
