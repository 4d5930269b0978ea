package scale

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ec2/eni/fleet"
	"github.com/berthnet/berth/internal/ipam"
)

// clusterName is the value of eni.TagCluster.
const clusterName = "scale"

// instanceType has 8 ENIs of 30 addresses each, the primary one included.
const instanceType = "m5.4xlarge"

// cluster is a fleet with an EC2 in memory, and the model of its nodes.
type cluster struct {
	ec2   *ec2
	fleet *fleet.Fleet
	kick  func(*node) // tells the fleet, or what stands in for it, that a node's usage changed
	nodes []*node
	set   eni.Settings
	began time.Time

	stop    context.CancelFunc
	stopped chan struct{}

	mu     sync.Mutex // guards all below
	has    int        // wanted addresses that nodes have
	goal   int        // value of has at which filled is closed
	filled chan struct{}
	last   time.Duration // when the goal was reached
}

// want is what the nodes of a workload need.
type want struct {
	policy    ipam.Policy
	available int   // addresses of a filled node; 0: as many as the policy asks for at first
	subnets   []int // free addresses of each; empty: one with enough for all
	short     int   // addresses that the subnets cannot give
}

func newCluster(o Order, w want) (*cluster, error) {
	cloud := newEC2(o, w.subnets)
	c := &cluster{
		ec2: cloud, stopped: make(chan struct{}),
		filled: make(chan struct{}), set: eni.Settings{InstanceType: instanceType, Policy: w.policy, AnySubnet: true},
	}
	if len(w.subnets) > 0 {
		c.set.SubnetTags = forPods
	}
	var err error
	c.fleet, err = fleet.New(fleet.Config{Cluster: clusterName, Cloud: cloud.paced})
	if err != nil {
		return nil, err
	}
	c.kick = func(n *node) { c.fleet.Kick(n.name) }
	available := w.available
	if available == 0 {
		available = w.policy.Demand(1, false, ipam.Usage{}).Want
	}
	c.goal = o.Nodes*available - w.short
	for i := range o.Nodes {
		c.nodes = append(c.nodes, &node{
			name: fmt.Sprintf("node-%05d", i), instance: cloud.instances[i],
			want: available, gained: c.gained, used: map[netip.Addr]bool{},
		})
	}
	return c, nil
}

// start runs the fleet.
func (c *cluster) start(ctx context.Context) {
	ctx, c.stop = context.WithCancel(ctx)
	c.began = time.Now()
	go func() {
		defer close(c.stopped)
		_ = c.fleet.Run(ctx) // only fails when its context ends
	}()
}

// join adds all nodes at the given interval, and returns once all are filled.
func (c *cluster) join(ctx context.Context, every time.Duration) error {
	for i, n := range c.nodes {
		if i > 0 && every > 0 {
			<-time.After(every)
		}
		if err := c.fleet.Set(n.name, n.instance, c.set, eni.Inventory{}, n); err != nil {
			return fmt.Errorf("add %s: %w", n.name, err)
		}
	}
	return c.wait(ctx)
}

// event has a pod take an address on one node, and returns once the node has a replacement.
func (c *cluster) event(ctx context.Context, n *node) error {
	c.expect(1)
	n.use(1, 1)
	c.kick(n)
	return c.wait(ctx)
}

// calm removes the pods of events, and returns once the excess addresses are released.
func (c *cluster) calm(nodes []*node) {
	for _, n := range nodes {
		n.leave(1)
		c.kick(n)
	}
	c.mu.Lock()
	c.goal, c.has = c.goal-len(nodes), c.has-len(nodes)
	c.mu.Unlock()
	c.idle(2 * time.Minute) // beyond the delay of shrinking
}

// expect adds to the number of addresses that wait waits for.
func (c *cluster) expect(more int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.goal, c.filled = c.goal+more, make(chan struct{})
}

func (c *cluster) gained(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.has
	if c.has += n; before < c.goal && c.has >= c.goal {
		c.last = time.Since(c.began)
		close(c.filled)
	}
}

// deadline is in virtual time, so waiting for it costs nearly nothing.
const deadline = 2 * time.Hour

// wait returns once the goal is reached.
func (c *cluster) wait(ctx context.Context) error {
	c.mu.Lock()
	filled := c.filled
	c.mu.Unlock()
	select {
	case <-filled:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(deadline):
		c.mu.Lock()
		defer c.mu.Unlock()
		return fmt.Errorf("%d addresses after %v, expected %d; calls: %v", c.has, deadline, c.goal, c.ec2.outcome().Calls)
	}
}

// idle lets virtual time pass.
func (c *cluster) idle(d time.Duration) { <-time.After(d) }

// close stops the fleet.
func (c *cluster) close() {
	c.stop()
	<-c.stopped
	c.idle(time.Hour) // until remaining timers have fired
}

// times returns when the goal was reached, and when half of the nodes were filled.
func (c *cluster) times() (last, median time.Duration) {
	var all []time.Duration
	for _, n := range c.nodes {
		n.mu.Lock()
		if n.has == n.want {
			all = append(all, n.filledAt.Sub(c.began))
		}
		n.mu.Unlock()
	}
	slices.Sort(all)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last, all[(len(all)-1)/2]
}

// node is the node's side of the allocator, in place of its NodeNetwork object: the inventory published
// last, and the addresses that pods use.
type node struct {
	name, instance string
	gained         func(int) // called with each change of has

	mu        sync.Mutex // guards all below
	inventory eni.Inventory
	used      map[netip.Addr]bool
	want      int // number of addresses at which the node is filled
	has       int // of want
	filledAt  time.Time
}

var _ interface {
	eni.Node
	Reconciled(eni.Status)
} = (*node)(nil)

// Usage implements eni.Node.
func (n *node) Usage() eni.Usage {
	n.mu.Lock()
	defer n.mu.Unlock()
	u := eni.Usage{ENIs: make(map[string]eni.ENIUsage, len(n.inventory.ENIs))}
	for _, e := range n.inventory.ENIs {
		var of eni.ENIUsage
		for _, a := range e.Addresses {
			if n.used[a] {
				of.Used++
			} else {
				of.Free.Addresses++
			}
		}
		u.ENIs[e.ID] = of
	}
	return u
}

// Publish implements eni.Node.
func (n *node) Publish(_ context.Context, inv eni.Inventory) error {
	n.mu.Lock()
	n.inventory = inv
	before := n.has
	n.has = min(n.want, n.available())
	gained := n.has - before
	if gained > 0 && n.has == n.want {
		n.filledAt = time.Now()
	}
	n.mu.Unlock()
	if gained != 0 {
		n.gained(gained)
	}
	return nil
}

// available counts the addresses for pods. n.mu is held.
func (n *node) available() (count int) {
	for _, e := range n.inventory.ENIs {
		if e.Serves {
			count += len(e.Addresses)
		}
	}
	return count
}

// use assigns free addresses to pods, and increases the number of wanted addresses.
func (n *node) use(count, more int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.want += more
	for _, e := range n.inventory.ENIs {
		for _, a := range e.Addresses {
			if count > 0 && e.Serves && !n.used[a] {
				n.used[a] = true
				count--
			}
		}
	}
}

// leave frees addresses of pods, and decreases the number of wanted addresses.
func (n *node) leave(count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.inventory.ENIs {
		for _, a := range e.Addresses {
			if count > 0 && n.used[a] {
				delete(n.used, a)
				n.want, n.has, count = n.want-1, n.has-1, count-1
			}
		}
	}
}

// ObserveFailed implements eni.Node.
func (*node) ObserveFailed(error) {}

// Withdraw implements eni.Node.
func (n *node) Withdraw(id string, want cloud.Amount) (out []netip.Prefix) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.inventory.ENIs {
		if e.ID == id {
			for _, a := range e.Addresses {
				if !n.used[a] && len(out) < want.Addresses {
					out = append(out, netip.PrefixFrom(a, a.BitLen()))
				}
			}
		}
	}
	return out
}

// RestoreWithdrawn implements eni.Node.
func (n *node) RestoreWithdrawn([]netip.Prefix) {}

// WithdrawENI implements eni.Node.
func (n *node) WithdrawENI(id string) bool { return n.Usage().ENIs[id].Used == 0 }

// Committed implements fleet.Node: one operator works for the node.
func (n *node) Committed() []eni.Release { return nil }

// Reconciled is called after every pass.
func (n *node) Reconciled(eni.Status) {}
