package scale

import (
	"context"
	"fmt"
	"time"

	"github.com/berthnet/berth/bench/bubble"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/internal/ipam"
)

// workloads is how each is run.
var workloads = map[Workload]func(context.Context, Order) (Outcome, error){
	Join:            runJoin,
	Event:           runEvent,
	Fill:            runFill,
	Subnets:         runSubnets,
	Memory:          runMemory,
	ThrottledCreate: runThrottledCreate,
	ThrottledAssign: runThrottledAssign,
	Peers:           runPeers,
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
	m := meter{own: c.ec2.Front.CPU}
	m.start()
	c.start(ctx)
	err = c.join(ctx, 0)
	used := m.stop()
	defer c.close()
	out := c.ec2.outcome()
	out.CPU, out.Bytes, out.Events = used.cpu, used.bytes, o.Nodes
	return out, err
}

// A run measures rounds of events, on one node after the other, with as many on
// each node however many nodes there are. There must be enough rounds for the
// collector's work to be in them as it is in the long run: it comes all at once,
// when the heap has doubled.
const (
	nodesOfRound  = 100
	eventsOfRound = 4 * nodesOfRound
)

// allocatedInAll is how much a run's events allocate at least, in heaps of its size.
const allocatedInAll = 1

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
	m := meter{own: c.ec2.Front.CPU}
	m.start()
	const quiet = 10 * time.Minute
	c.idle(quiet)
	out := Outcome{Repair: m.stop().cpu / (quiet / time.Minute), Calls: map[string]int{}}

	enough := allocatedInAll * bubble.LiveHeap()
	for out.Bytes < enough || out.Events < 5*eventsOfRound {
		if err := c.round(ctx, &m, &out); err != nil {
			return Outcome{}, err
		}
	}
	return out, nil
}

// round measures the events of a round, and undoes them.
func (c *cluster) round(ctx context.Context, m *meter, out *Outcome) error {
	var nodes []*node
	for i := range eventsOfRound {
		place := out.Events/eventsOfRound*nodesOfRound + i%nodesOfRound
		nodes = append(nodes, c.nodes[place*7919%len(c.nodes)]) // 7919 is prime: far apart, and each in its turn
	}
	c.afterListing()
	before := c.ec2.outcome().Calls
	m.start()
	for _, n := range nodes {
		if err := c.event(ctx, n); err != nil {
			return fmt.Errorf("event on %s: %w", n.name, err)
		}
	}
	used := m.stop()
	out.CPU, out.Bytes, out.Events = out.CPU+used.cpu, out.Bytes+used.bytes, out.Events+len(nodes)
	for action, n := range c.ec2.outcome().Calls {
		out.Calls[action] += n - before[action]
	}
	c.calm(nodes)
	return nil
}

// afterListing returns when a listing for repair is over, with what it had the
// nodes look at, and long before the next: the fleet spreads the looks over a
// quarter of the minute between listings, which jitters by half.
func (c *cluster) afterListing() {
	listings := func() int { return c.ec2.outcome().Calls[pace.DescribeENIs.Action] }
	before, latest := listings(), time.Now().Add(2*time.Minute)
	for listings() == before && time.Now().Before(latest) {
		c.idle(100 * time.Millisecond)
	}
	c.idle(20 * time.Second)
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

func runThrottledCreate(ctx context.Context, o Order) (Outcome, error) {
	return runThrottled(ctx, o, ipam.DefaultCilium(), "CreateENI")
}

func runThrottledAssign(ctx context.Context, o Order) (Outcome, error) {
	return runThrottled(ctx, o, onPrimary(), "AssignAddresses")
}

// runThrottled fills nodes while the first call of a method is refused for its rate.
func runThrottled(ctx context.Context, o Order, p ipam.Policy, method string) (Outcome, error) {
	c, err := newCluster(o, want{policy: p})
	if err != nil {
		return Outcome{}, err
	}
	if !o.Calm {
		c.ec2.Front.Inject(cloudfake.Fault{Op: method, Times: 1, Err: cloudfake.Err(cloud.Throttled, "RequestLimitExceeded")})
	}
	return c.fill(ctx, o)
}

// fill measures how long it takes until all nodes have what they need.
func (c *cluster) fill(ctx context.Context, o Order) (Outcome, error) {
	foreign, stop := context.WithCancel(ctx)
	defer stop()
	c.ec2.besides(foreign, o.Limits)
	c.start(ctx)
	defer c.close()
	if err := c.join(ctx, o.Join); err != nil {
		return Outcome{}, err
	}
	out := c.ec2.outcome()
	out.Last, out.Median = c.times()
	out.Bound = o.Limits.Forces(out.Calls)
	return c.secure(out)
}

// secure waits until all ENIs go with their instances, and notes when that was.
func (c *cluster) secure(out Outcome) (Outcome, error) {
	for latest := time.Now().Add(deadline); ; c.idle(time.Second) {
		longest, left := c.ec2.exposure()
		switch {
		case left == 0:
			out.Exposed = longest
			return out, nil
		case time.Now().After(latest):
			return out, fmt.Errorf("%d ENIs would outlive their instances %v after all nodes were filled", left, deadline)
		}
	}
}
