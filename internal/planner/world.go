package planner

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/cloud/limits"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ec2/eni/fleet"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/enisource"
	"github.com/berthnet/berth/internal/vpcport/branch"
)

const cluster = "planner" // value of eni.TagCluster

// world is the cluster of one alternative. Its goroutine is that of engine.run, and those that run one at a time after
// clock.Turn: nothing is locked.
type world struct {
	clock
	sc       *variant
	rng      *rand.Rand
	cloud    *cloudfake.Cloud
	operator *operator // nil in node mode
	rec      *recorder
	work     *workload

	ctx   context.Context //nolint:containedctx // the life of everything in the bubble
	end   context.CancelFunc
	tasks sync.WaitGroup

	nodes   []*node           // those that exist, in the order of their start
	started int               // nodes ever
	scales  map[string]*scale // by node group
}

// operator is what berth-operator runs in operator mode.
type operator struct {
	api      cloud.API
	fleet    *fleet.Fleet
	branches *branch.Provider
}

// scale is the size of a node group.
type scale struct {
	wanted   int  // nodes
	starting int  // nodes that will start in seconds
	replaced bool // nodes were replaced before
}

// node is a node with its daemon's source of addresses.
type node struct {
	name, instance string
	group          *NodeGroup
	instanceType   string
	subnet         string
	maxPods        int
	src            *enisource.Source
	end            context.CancelFunc

	leaving  bool // another has started in its place
	ready    bool // the plugin's STATUS succeeds, so pods are scheduled
	pods     int
	branches int
	of       map[*deployment]int // pods, by deployment
	daemons  []*pod
	waiting  map[*pod]bool
}

func newWorld(e *engine, p *variant) (*world, error) {
	w := &world{clock: clock{e, ""}, sc: p, rng: rand.New(rand.NewPCG(p.Seed, 1)), scales: map[string]*scale{}}
	w.ctx, w.end = context.WithCancel(context.Background())
	w.cloud = cloudfake.New(cloudfake.Options{
		Clock: w.clock, Latency: p.EC2.Latency.Or(latency), AttachTime: p.EC2.AttachTime.Or(attachTime), Buckets: buckets(p.EC2.RateLimits), Seed: p.Seed,
	})
	for i, s := range p.Subnets {
		zone := cmp.Or(s.Zone, "a")
		if s.CIDR == "" {
			w.cloud.State.AddIPv6Subnet(s.Name, zone, blockIPv6(i), s.Tags)
			continue
		}
		w.cloud.State.AddSubnet(s.Name, zone, s.CIDR, s.Tags)
		if s.IPv6 {
			w.cloud.State.SetIPv6(s.Name, blockIPv6(i))
		}
		w.cloud.State.Occupy(s.Name, s.Used)
	}
	w.rec = newRecorder(w)
	w.work = newWorkload(w)
	if p.settings.Mode == ModeOperator {
		return w, w.startOperator()
	}
	return w, nil
}

func blockIPv6(i int) string { return fmt.Sprintf("2001:db8:0:%x::/64", i) }

const (
	latency    = 150 * time.Millisecond
	attachTime = 2 * time.Second

	// The defaults of --listing-interval (TestDefaults).
	listingInterval           = 5 * time.Minute
	listingIntervalOfOperator = time.Minute
)

// buckets returns EC2's documented rate limits (EC2 Developer Guide, "Request throttling for the Amazon EC2 API"), times
// a factor.
func buckets(factor *float64) map[string]cloudfake.Bucket {
	f := 1.0
	if factor != nil {
		f = *factor
	}
	if f == 0 {
		return nil
	}
	of := func(size, rate float64) cloudfake.Bucket {
		return cloudfake.Bucket{Size: max(1, size*f), Rate: rate * f}
	}
	assign := of(100, 5)
	return map[string]cloudfake.Bucket{
		"Describe": of(100, 20), "": of(50, 5), pace.Tag.Action: of(100, 10),
		pace.Assign.Action: assign, pace.Unassign.Action: assign, pace.AssignIPv6.Action: assign, pace.UnassignIPv6.Action: assign,
	}
}

func (w *world) timing() eni.Timing {
	s := w.sc.settings
	listing := listingInterval
	if s.Mode == ModeOperator {
		listing = listingIntervalOfOperator
	}
	return eni.Timing{ShrinkDelay: s.ShrinkDelay.Std(), ListingInterval: s.ListingInterval.Or(listing)}
}

func (w *world) startOperator() error {
	api := pace.Cloud(w.cloud, pace.Options{Observer: w.rec, Clock: w.clock})
	var mu sync.Mutex // guards rng
	rng := rand.New(rand.NewPCG(w.sc.Seed, 0))
	f, err := fleet.New(fleet.Config{
		Cluster: cluster, Cloud: api, Clock: w.clock, Timing: w.timing(),
		Random: func(n int64) int64 {
			mu.Lock()
			defer mu.Unlock()
			return rng.Int64N(n)
		},
	})
	if err != nil {
		return err
	}
	w.operator = &operator{api: api, fleet: f, branches: branch.Open(branch.Settings{
		Cloud: api, Cluster: cluster, VPC: cloudfake.VPC, Families: w.sc.eni.Policy.Families, Ended: w.ctx.Done(), Clock: w.clock,
	})}
	w.tasks.Go(func() { _ = f.Run(w.ctx) })
	return nil
}

// startNode launches an instance with a daemon. It reports false if the subnet has no address for it.
func (w *world) startNode(g *NodeGroup) bool {
	subnet := g.Subnets[w.started%len(g.Subnets)]
	if w.cloud.State.Free(subnet) < 1 {
		w.rec.event(Event{Kind: KindSubnetFull, On: subnet, Text: fmt.Sprintf("A node of group %s cannot start: subnet %s has no free address", g.Name, subnet)})
		return false
	}
	w.started++
	n := &node{
		name: fmt.Sprintf("%s-%d", g.Name, w.started), instance: fmt.Sprintf("i-%017x", w.started), group: g, instanceType: g.InstanceType,
		subnet: subnet, maxPods: w.sc.maxPods[g.Name], waiting: map[*pod]bool{}, of: map[*deployment]int{},
	}
	w.cloud.State.AddInstance(n.instance, g.InstanceType, subnet)
	var ctx context.Context
	ctx, n.end = context.WithCancel(w.ctx)
	if err := w.startDaemon(n); err != nil {
		w.rec.fail(fmt.Errorf("start node %s: %w", n.name, err))
		return false
	}
	w.nodes = append(w.nodes, n)
	w.tasks.Go(func() { _ = n.src.Run(ctx) })
	w.awaitReady(n)
	return true
}

func (w *world) startDaemon(n *node) (err error) {
	c := clock{w.engine, n.name}
	settings := w.sc.eni
	settings.InstanceType = n.instanceType
	o := enisource.Options{
		InstanceID: n.instance, Datapath: &links{clock: c, attach: w.sc.EC2.AttachTime.Or(attachTime), has: map[string]bool{}},
		Cooling: w.sc.cooling(), Clock: c,
	}
	if w.operator == nil {
		n.src, err = enisource.New(o, eni.Config{
			Settings: settings, Cluster: cluster, Timing: w.timing(), Rand: rand.New(rand.NewPCG(w.sc.Seed, uint64(w.started)+2)),
			Cloud: pace.Cloud(w.cloud, pace.Options{Peers: true, Observer: w.rec, Clock: c}),
		})
		return err
	}
	s := &supplier{kick: func() { w.operator.fleet.Kick(n.name) }, prefixes: settings.Policy.PrefixDelegation}
	if n.src, err = enisource.NewSupplied(o, s); err != nil {
		return err
	}
	return w.operator.fleet.Set(n.name, n.instance, settings, eni.Inventory{}, &fleetNode{Node: enisource.NodeOf(n.src), supplier: s})
}

// awaitReady makes the node schedulable once its plugin is ready.
func (w *world) awaitReady(n *node) {
	w.later(500*time.Millisecond, func() {
		switch {
		case !slices.Contains(w.nodes, n):
		case n.src.Ready() != nil:
			w.awaitReady(n)
		default:
			n.ready = true
			w.work.nodeReady(n)
		}
	})
}

// stopNode drains and terminates a node.
func (w *world) stopNode(n *node) {
	w.nodes = slices.DeleteFunc(w.nodes, func(o *node) bool { return o == n })
	n.ready = false
	w.work.nodeGone(n)
	n.end()
	if w.operator != nil {
		w.operator.fleet.Remove(n.name)
	}
	w.cloud.State.Terminate(n.instance)
}

// staying returns the nodes of a group that are not being replaced, the oldest first.
func (w *world) staying(g *NodeGroup) []*node {
	return slices.DeleteFunc(w.nodesOf(g), func(n *node) bool { return n.leaving })
}

// nodesOf returns the nodes of a group, the oldest first.
func (w *world) nodesOf(g *NodeGroup) (out []*node) {
	for _, n := range w.nodes {
		if n.group == g {
			out = append(out, n)
		}
	}
	return out
}

// later is engine.after for as long as the simulation goes on.
func (w *world) later(d time.Duration, f func()) {
	w.after(w.owner, d, func() {
		if w.ctx.Err() == nil {
			f()
		}
	})
}

// stop ends everything in the bubble.
func (w *world) stop() error {
	w.end()
	ended := make(chan struct{})
	go func() {
		w.tasks.Wait()
		close(ended)
	}()
	w.outside, w.most = context.Background(), math.MaxInt // whatever ended the simulation does not end this
	return w.run(time.Now().Add(48*time.Hour), func() bool {
		select {
		case <-ended:
			return w.quiet()
		default:
			return false
		}
	})
}

// branchesOf returns the number of branch interfaces that a node may have.
func (n *node) branchesOf() int { return limits.Branches(n.instanceType) }

// links is a data path whose links of ENIs appear once EC2 has attached them.
type links struct {
	clock  clock
	attach time.Duration
	has    map[string]bool
}

// SetENI implements enisource.Datapath.
func (l *links) SetENI(ctx context.Context, e eni.ENI) error {
	wait := l.attach
	if e.Primary || l.has[e.ID] {
		wait = 0
	}
	if err := l.wait(ctx, wait); err != nil {
		return err
	}
	l.has[e.ID] = true
	return nil
}

// RemoveENI implements enisource.Datapath.
func (l *links) RemoveENI(ctx context.Context, id string) error {
	delete(l.has, id)
	return l.wait(ctx, 0)
}

// ChangedLinks implements enisource.Datapath.
func (l *links) ChangedLinks(ctx context.Context) (map[string]source.LinkChange, error) {
	return nil, l.wait(ctx, 0)
}

// wait lets the goroutines that the same event woke go on first.
func (l *links) wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-l.clock.After(d):
		return nil
	}
}

// supplier supplies a source whose reconciler is the operator's.
type supplier struct {
	kick     func()
	prefixes bool

	mu     sync.Mutex // guards status
	status eni.Status
}

var _ enisource.Supplier = (*supplier)(nil)

// Seed implements enisource.Supplier.
func (*supplier) Seed(eni.Inventory) {}

// Run implements enisource.Supplier.
func (*supplier) Run(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

// Kick implements enisource.Supplier.
func (s *supplier) Kick() { s.kick() }

// LastError implements enisource.Supplier.
func (s *supplier) LastError() string { return s.current().LastError }

// OtherGroups implements enisource.Supplier.
func (*supplier) OtherGroups() ([]string, bool, bool) { return nil, false, false }

// PrefixDelegation implements enisource.Supplier.
func (s *supplier) PrefixDelegation() bool { return s.prefixes }

// Template implements enisource.Supplier.
func (*supplier) Template() string { return "" }

// Why implements enisource.Supplier.
func (s *supplier) Why(served bool) *source.Exhausted { return enisource.Why(s.current(), served) }

func (s *supplier) current() eni.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// fleetNode is a source as a node of the operator's fleet. The object between the two is left out: both see each other's
// state at once.
type fleetNode struct {
	eni.Node
	supplier *supplier

	// These belong to the pass's goroutine.
	releases  []eni.Release // recorded, and not made yet
	published *eni.Inventory
}

var _ fleet.Node = (*fleetNode)(nil)

// Publish implements eni.Node.
func (n *fleetNode) Publish(ctx context.Context, inv eni.Inventory) error {
	n.releases = slices.Clone(inv.Releasing)
	for _, l := range inv.Leaving {
		if l.Attached {
			n.releases = append(n.releases, eni.Release{ENI: l.ENI})
		}
	}
	if n.published != nil && sameInventory(*n.published, inv) {
		return nil // the operator does not write an object that has not changed
	}
	n.published = &inv
	return n.Node.Publish(ctx, inv)
}

// sameInventory reports whether two inventories have the same ENIs, and neither is releasing any.
func sameInventory(a, b eni.Inventory) bool {
	return a.InstanceType == b.InstanceType && a.Limits == b.Limits && a.Families == b.Families && len(a.Releasing)+len(b.Releasing)+len(a.Leaving)+len(b.Leaving) == 0 &&
		slices.EqualFunc(a.ENIs, b.ENIs, eni.ENI.Equal)
}

// Reconciled implements fleet.Node.
func (n *fleetNode) Reconciled(s eni.Status) {
	n.supplier.mu.Lock()
	defer n.supplier.mu.Unlock()
	n.supplier.status = s
}

// Committed implements fleet.Node.
func (n *fleetNode) Committed() []eni.Release { return n.releases }
