// Package scale runs Berth's ENI allocator (internal/ec2/eni/fleet behind internal/ec2/cloud/pace) for up
// to 100,000 nodes against an EC2 in memory, in virtual time or, in takeovers, in real time, and measures its cost and its speed. HTTP is
// not involved, and Kubernetes only in takeovers: in memory as well.
//
// A program that uses the package passes Job and TakeoverJob to bubble.Child.
package scale

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berthnet/berth/bench/bubble"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/internal/ipam"
)

// Order is one run.
type Order struct {
	Workload Workload
	Nodes    int
	Limits   Limits        // of EC2
	Join     time.Duration // from one node's arrival to the next; 0: all at once
	Calm     bool          // without the throttling that the workload is named for
}

// Workload is the behaviour of the nodes of a run.
type Workload string

// The workloads.
const (
	// Join: every node has one ENI and needs 8 addresses on it.
	Join Workload = "join"
	// Event: like Join; then one pod takes an address on one node after the other.
	Event Workload = "event"
	// Fill: every node needs a new ENI.
	Fill Workload = "fill"
	// Subnets: every node needs 11 addresses on a new ENI, in one of three
	// subnets with 400 free addresses each.
	Subnets Workload = "subnets"
	// Memory: every node has 10 addresses used and 8 free.
	Memory Workload = "memory"
	// ThrottledCreate and ThrottledAssign: the first such call is throttled once.
	ThrottledCreate Workload = "throttled-create"
	ThrottledAssign Workload = "throttled-assign"
	// Peers: every node has its own limiter, and makes 500 calls.
	Peers Workload = "peers"
	// Daemons in node mode, each with its own limiter: all start at once; all are at rest for an hour; a fifth is replaced; an
	// hour of churn; EC2 fails for five minutes.
	NodeStart   Workload = "node-start"
	NodeRest    Workload = "node-rest"
	NodeReplace Workload = "node-replace"
	NodeChurn   Workload = "node-churn"
	NodeOutage  Workload = "node-outage"
)

// Outcome is what a run measured. Fields that its workload does not have are zero.
type Outcome struct {
	CPU    time.Duration // without that of the EC2 in memory and, in Event, of the model of the nodes
	Bytes  uint64        // allocated, including by the EC2 in memory; in Event, only by Berth
	Heap   uint64        // live bytes at the end, without the EC2 in memory
	Events int           // included in CPU and Bytes
	Repair time.Duration // CPU time per minute with no activity except the repair listing

	Last, Median time.Duration // when nodes had their addresses, or calls of Peers passed, from the start
	Daemons      DaemonTimes
	Bound        time.Duration // lower bound that the limits impose for these calls
	Calls        map[string]int
	Throttled    int           // calls refused by the limits
	Waited       time.Duration // in Berth's own limiters, all calls together
	ENIs         int           // ENIs that were created
	Exposed      time.Duration // the longest time from an ENI's attachment until its DeleteOnTermination was set

	FailedCreates int // for other reasons than throttling
}

// DaemonTimes are when the last daemon had its first address, and the most time that one needed for all.
type DaemonTimes struct{ First, Worst time.Duration }

// TotalCalls returns the number of calls, without throttled ones.
func (o Outcome) TotalCalls() (n int) {
	for _, c := range o.Calls {
		n += c
	}
	return n
}

// Job is this kind of run.
var Job = bubble.Job[Order, Outcome]{Name: "scale", Do: func(ctx context.Context, o Order) (Outcome, error) {
	work, ok := workloads[o.Workload]
	if !ok {
		return Outcome{}, fmt.Errorf("unknown workload %q", o.Workload)
	}
	return work(ctx, o)
}}

// workloads are the functions that run them.
var workloads = map[Workload]func(context.Context, Order) (Outcome, error){
	Join:            runJoin,
	Event:           runEvent,
	Fill:            runFill,
	Subnets:         runSubnets,
	Memory:          runMemory,
	ThrottledCreate: runThrottledCreate,
	ThrottledAssign: runThrottledAssign,
	Peers:           runPeers,
	NodeStart:       runNodeStart,
	NodeRest:        runNodeRest,
	NodeReplace:     runNodeReplace,
	NodeChurn:       runNodeChurn,
	NodeOutage:      runNodeOutage,
}

// onPrimary returns a policy by which nodes keep 8 free addresses on their primary ENI.
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

// A run measures rounds of events, on one node after the other, with the same number per node regardless of the number of
// nodes, and then the same rounds without Berth, which are subtracted. No garbage is collected during a round, because it would be
// chance whether the collection of a large heap falls into one. Instead, each allocated byte counts with the CPU time of one
// collection, divided by the size of the heap: the heap doubles between two collections (GOGC=100).
const (
	roundNodes    = 100
	eventsOfRound = 4 * roundNodes
	rounds        = 10
)

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
	c.idle(5 * time.Minute) // until state left by joining has expired
	c.ec2.Front.ResetCalls()
	m := meter{own: c.ec2.Front.CPU}
	m.start()
	const quiet = 10 * time.Minute
	c.idle(quiet)
	out := Outcome{Repair: m.stop().cpu / (quiet / time.Minute), Calls: map[string]int{}}

	heap, began := bubble.LiveHeap(), bubble.CPU()
	runtime.GC()
	collection := bubble.CPU() - began
	var with []spent
	for i := range rounds {
		nodes := c.nodesOfRound(i)
		c.afterListing()
		before := c.ec2.outcome().Calls
		used, err := c.round(ctx, &m, nodes)
		if err != nil {
			return Outcome{}, err
		}
		with = append(with, used)
		out.Events += len(nodes)
		for action, n := range c.ec2.outcome().Calls {
			out.Calls[action] += n - before[action]
		}
		c.calm(nodes)
	}
	c.close()
	without, err := c.withoutBerth(ctx, &m)
	if err != nil {
		return Outcome{}, err
	}
	all, rest := median(with), median(without)
	out.CPU, out.Bytes = rounds*(all.cpu-rest.cpu), rounds*(all.bytes-rest.bytes)
	out.CPU += time.Duration(float64(collection) * float64(out.Bytes) / float64(heap))
	return out, nil
}

// withoutBerth measures the same rounds of events with a bare stand-in for the fleet, which has ended.
func (c *cluster) withoutBerth(ctx context.Context, m *meter) (all []spent, err error) {
	b := newBare(c.ec2)
	c.kick = func(n *node) { b.due <- n }
	go b.run(ctx)
	for i := range rounds {
		nodes := c.nodesOfRound(i)
		used, err := c.round(ctx, m, nodes)
		if err != nil {
			return nil, errors.Join(err, b.end())
		}
		all = append(all, used)
		c.calm(nodes)
	}
	return all, b.end()
}

// median returns the median of each resource: a listing for repair, or the passes that follow it, may fall into a round.
func median(all []spent) spent {
	middle := len(all) / 2
	cpu := slices.SortedFunc(slices.Values(all), func(a, b spent) int { return cmp.Compare(a.cpu, b.cpu) })
	bytes := slices.SortedFunc(slices.Values(all), func(a, b spent) int { return cmp.Compare(a.bytes, b.bytes) })
	return spent{cpu[middle].cpu, bytes[middle].bytes}
}

// nodesOfRound returns the nodes of a round's events.
func (c *cluster) nodesOfRound(round int) (nodes []*node) {
	for i := range eventsOfRound {
		place := round*roundNodes + i%roundNodes
		nodes = append(nodes, c.nodes[place*7919%len(c.nodes)]) // 7919 is prime: spreads the nodes and visits each
	}
	return nodes
}

// round measures one event on each of the nodes, one after the other.
func (c *cluster) round(ctx context.Context, m *meter, nodes []*node) (spent, error) {
	c.ec2.Front.ResetCalls() // otherwise the growth of the log would count as Berth's
	runtime.GC()
	collects := debug.SetGCPercent(-1)
	defer debug.SetGCPercent(collects)
	m.start()
	for _, n := range nodes {
		if err := c.event(ctx, n); err != nil {
			return spent{}, fmt.Errorf("event on %s: %w", n.name, err)
		}
	}
	return m.stop(), nil
}

// afterListing returns after a repair listing and the node passes that it triggers, and long before the
// next listing: the fleet spreads the passes over a quarter of the interval of one minute, which jitters
// by half.
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

// runThrottled fills nodes while the first call of a method is throttled.
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
	c.ec2.startForeign(foreign, o.Limits)
	c.start(ctx)
	defer c.close()
	if err := c.join(ctx, o.Join); err != nil {
		return Outcome{}, err
	}
	out := c.ec2.outcome()
	out.Last, out.Median = c.times()
	out.Bound = o.Limits.MinDuration(out.Calls)
	return c.secure(out)
}

// secure waits until all ENIs have DeleteOnTermination, and records the longest exposure.
func (c *cluster) secure(out Outcome) (Outcome, error) {
	for latest := time.Now().Add(deadline); ; c.idle(time.Second) {
		longest, left := c.ec2.exposure()
		switch {
		case left == 0:
			out.Exposed = longest
			return out, nil
		case time.Now().After(latest):
			return out, fmt.Errorf("%d ENIs lack DeleteOnTermination %v after all nodes were filled", left, deadline)
		}
	}
}

// Addresses of each node in runMemory.
const usedByPods, keptFree = 10, 8

// runMemory measures the allocator's memory for nodes in a steady state. The memory of the EC2 in memory
// is measured separately, without Berth, and subtracted.
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
	own, err := ec2Alone(ctx, o)
	if err != nil {
		return Outcome{}, err
	}
	runtime.KeepAlive(c)
	return Outcome{Heap: all - empty - own, Calls: c.ec2.outcome().Calls}, nil
}

// ec2Alone returns the heap size of an EC2 in memory with the ENIs of runMemory, created without Berth.
func ec2Alone(ctx context.Context, o Order) (uint64, error) {
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
			return 0, fmt.Errorf("create the ENIs of an EC2 without Berth: %w", err)
		}
	}
	e.Front.ResetCalls()
	size := bubble.LiveHeap() - before
	runtime.KeepAlive(e)
	return size, nil
}

// callsOfPeer is how many ENIs each peer creates: enough for its limiter to settle.
const callsOfPeer = 500

// runPeers runs one limiter per node. They share the same buckets without knowing of each other, like
// daemons in node mode.
func runPeers(ctx context.Context, o Order) (Outcome, error) {
	e := newEC2(o, nil)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	e.startForeign(ctx, o.Limits)
	begin := time.Now()
	var all errgroup.Group
	at := make([]time.Duration, o.Nodes*callsOfPeer) // when each call succeeded
	for peer := range o.Nodes {
		api := pace.Cloud(e, pace.Options{Peers: true, Observer: e})
		for n := range callsOfPeer {
			all.Go(func() error {
				q := cloud.CreateENI{SubnetID: primaries, ClientToken: fmt.Sprintf("%d-%d", peer, n)}
				_, err := api.CreateENI(ctx, q)
				for cloud.ClassOf(err) == cloud.Throttled && ctx.Err() == nil {
					_, err = api.CreateENI(ctx, q)
				}
				at[peer*callsOfPeer+n] = time.Since(begin)
				return err
			})
		}
	}
	if err := all.Wait(); err != nil {
		return Outcome{}, fmt.Errorf("create an ENI: %w", err)
	}
	slices.Sort(at)
	out := e.outcome()
	out.Last, out.Median = at[len(at)-1], at[len(at)/2]
	out.Bound = o.Limits.MinDuration(out.Calls)
	return out, nil
}

// meter measures the resources used between start and stop, without the CPU time of the EC2 in memory.
// Allocations of the EC2 in memory, mostly replies, are included: the runtime does not attribute them.
type meter struct {
	own func() time.Duration // CPU time of the EC2 in memory so far
	at  spent
}

// spent are the resources that a process, or a part of it, has used.
type spent struct {
	cpu   time.Duration
	bytes uint64
}

func (m *meter) start() { m.at = m.now() }

func (m *meter) stop() spent {
	now := m.now()
	return spent{now.cpu - m.at.cpu, now.bytes - m.at.bytes}
}

func (m *meter) now() spent {
	all := processSpent()
	all.cpu -= m.own()
	return all
}

// processSpent returns the CPU time and the allocated bytes of the process.
func processSpent() spent {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return spent{bubble.CPU(), sample[0].Value.Uint64()}
}
