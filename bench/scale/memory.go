package scale

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/berthnet/berth/bench/bubble"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ipam"
)

// Addresses of each node in runMemory.
const usedByPods, keptFree = 10, 8

// runMemory measures what the allocator keeps of nodes in their steady state.
// What the EC2 in memory keeps itself is measured by making its books alone.
func runMemory(ctx context.Context, o Order) (Outcome, error) {
	p := ipam.DefaultCilium()
	p.MinAllocate, p.PreAllocate = usedByPods+keptFree, keptFree
	empty := bubble.LiveHeap()
	c, err := newCluster(o, want{policy: p})
	if err != nil {
		return Outcome{}, err
	}
	c.start(ctx)
	defer c.close()
	if err := c.join(ctx, 0); err != nil {
		return Outcome{}, err
	}
	for _, n := range c.nodes {
		n.use(usedByPods, 0)
		c.fleet.Kick(n.name)
	}
	c.idle(5 * time.Minute)
	c.ec2.Front.ResetCalls()
	all := bubble.LiveHeap()
	books, err := booksAlone(ctx, o)
	if err != nil {
		return Outcome{}, err
	}
	runtime.KeepAlive(c)
	return Outcome{Heap: all - empty - books, Calls: c.ec2.outcome().Calls}, nil
}

// booksAlone is the heap of an EC2 with the ENIs of runMemory, made without Berth.
func booksAlone(ctx context.Context, o Order) (uint64, error) {
	before := bubble.LiveHeap()
	e := newEC2(o, nil)
	for i, id := range e.instances {
		made, err := e.CreateENI(ctx, cloud.CreateENI{
			SubnetID: primaries, Amount: cloud.Amount{Addresses: usedByPods + keptFree}, ClientToken: fmt.Sprint("berth-token-of-the-same-length", i),
			Description: "Berth (" + id + ")", Tags: map[string]string{"berth.dev/cluster": clusterName, "berth.dev/instance-id": id},
		})
		if err == nil {
			_, err = e.AttachENI(ctx, made.ID, id, 1)
		}
		if err != nil {
			return 0, fmt.Errorf("make the books of EC2: %w", err)
		}
	}
	e.Front.ResetCalls()
	size := bubble.LiveHeap() - before
	runtime.KeepAlive(e)
	return size, nil
}
