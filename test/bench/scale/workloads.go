package scale

import (
	"context"
	"fmt"
	"time"

	"github.com/berthnet/berth/internal/cloud/pace"
	"github.com/berthnet/berth/internal/ipam"
)

// workloads is how each is run.
var workloads = map[Workload]func(context.Context, Order) (Outcome, error){
	Join:            runJoin,
	Event:           runEvent,
	Fill:            runFill,
	Subnets:         runSubnets,
	Memory:          runMemory,
	ThrottledCreate: runThrottled,
	ThrottledAssign: runThrottled,
}

// onPrimary has nodes keep 8 addresses free on the ENI that they have.
func onPrimary() ipam.Policy {
	p := ipam.DefaultCilium()
	p.FirstInterfaceIndex = 0
	return p
}

func runJoin(ctx context.Context, o Order) (Outcome, error) {
	c, err := newCluster(o, want{policy: onPrimary()})
	if err != nil {
		return Outcome{}, err
	}
	m := meter{own: c.ec2.CPU}
	m.start()
	c.start(ctx)
	err = c.join(ctx, 0)
	used := m.stop()
	defer c.close()
	out := c.ec2.outcome()
	out.CPU, out.Bytes, out.Events = used.cpu, used.bytes, o.Nodes
	return out, err
}

// events is how many one run measures.
const events = 400

func runEvent(ctx context.Context, o Order) (Outcome, error) {
	c, err := newCluster(o, want{policy: onPrimary()})
	if err != nil {
		return Outcome{}, err
	}
	c.start(ctx)
	defer c.close()
	if err := c.join(ctx, 0); err != nil {
		return Outcome{}, err
	}
	c.idle(5 * time.Minute) // what joining left behind is forgotten by then
	out := Outcome{Events: events}
	m := meter{own: c.ec2.CPU}
	m.start()
	const quiet = 10 * time.Minute
	c.idle(quiet)
	out.Repair = m.stop().cpu / (quiet / time.Minute)

	c.afterListing()
	m.start()
	before := c.ec2.outcome().Calls
	for i := range events {
		if err := c.event(ctx, c.nodes[i*7919%len(c.nodes)]); err != nil {
			return Outcome{}, fmt.Errorf("event %d: %w", i, err)
		}
	}
	used := m.stop()
	out.CPU, out.Bytes, out.Calls = used.cpu, used.bytes, c.ec2.outcome().Calls
	for action, n := range before {
		out.Calls[action] -= n
	}
	return out, nil
}

// afterListing returns once a listing for repair is over, so that the next is
// far away.
func (c *cluster) afterListing() {
	listings := func() int { return c.ec2.outcome().Calls[pace.DescribeENIs.Action] }
	for before := listings(); listings() == before; {
		c.idle(100 * time.Millisecond)
	}
	for before := -1; listings() != before; {
		before = listings()
		c.idle(time.Second)
	}
}

func runFill(ctx context.Context, o Order) (Outcome, error) {
	c, err := newCluster(o, want{policy: ipam.DefaultCilium()})
	if err != nil {
		return Outcome{}, err
	}
	return c.fill(ctx, o)
}

// runSubnets is for 100 nodes. Each ENI's primary address comes from the subnet
// too, so that 400 addresses serve 33 nodes and leave 4: three ENIs of the last
// node get 3 each.
func runSubnets(ctx context.Context, o Order) (Outcome, error) {
	p := ipam.DefaultCilium()
	p.MinAllocate, p.PreAllocate = 11, 0
	c, err := newCluster(o, want{policy: p, subnets: []int{400, 400, 400}, short: 2})
	if err != nil {
		return Outcome{}, err
	}
	return c.fill(ctx, o)
}

// fill measures how long it takes until all nodes have what they need.
func (c *cluster) fill(ctx context.Context, o Order) (Outcome, error) {
	c.start(ctx)
	defer c.close()
	if err := c.join(ctx, o.Join); err != nil {
		return Outcome{}, err
	}
	out := c.ec2.outcome()
	out.Last, out.Median = c.times()
	out.Bound = o.Limits.bound(out.Calls)
	return out, nil
}
