package scale

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/berthnet/berth/bench/bubble"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/enisource"
)

// Daemons in node mode: each node has its own address source, reconciler and limiter, with the default settings. They know
// nothing of each other, and share the buckets of one account.

const (
	addressesOfENI = 29 // for pods, of an ENI of instanceType
	podsAtStart    = 2  // of each node, such as those of DaemonSets
	attachTime     = 2 * time.Second

	listingIntervalOfNode = 5 * time.Minute // the default of berthd's --listing-interval
)

// daemons are the nodes of a run.
type daemons struct {
	ec2   *ec2
	dice  *rand.Rand
	parts *bubble.Parts
	list  []*daemon
}

func newDaemons(ctx context.Context, o Order) (*daemons, context.Context) {
	d := &daemons{ec2: newEC2(o, nil), dice: rand.New(rand.NewPCG(o.Limits.Seed, 3))}
	d.ec2.State.SetAttachTime(attachTime)
	d.parts, ctx = bubble.NewParts(ctx)
	return d, ctx
}

// start starts the daemon of an instance, and its first pods.
func (d *daemons) start(ctx context.Context, instance string) error {
	n := &daemon{instance: instance, pods: podsAtStart, asked: time.Now(), starts: true}
	var err error
	n.src, err = enisource.New(enisource.Options{InstanceID: instance, Datapath: links{}, Cooling: ipam.DefaultCooling, Store: n}, eni.Config{
		Settings: eni.Settings{InstanceType: instanceType, Policy: ipam.DefaultAWS()}, Cluster: clusterName,
		Timing: eni.Timing{ListingInterval: listingIntervalOfNode},
		Rand:   rand.New(rand.NewPCG(d.dice.Uint64(), d.dice.Uint64())),
		Cloud:  pace.Cloud(d.ec2, pace.Options{Peers: true, Observer: d.ec2}),
	})
	if err != nil {
		return fmt.Errorf("start the daemon of %s: %w", instance, err)
	}
	ctx, n.stop = context.WithCancel(ctx)
	d.list = append(d.list, n)
	d.parts.Start(instance, func(context.Context) error { _ = n.src.Run(ctx); return nil }) // until ctx ends
	for range podsAtStart {
		d.acquire(ctx, n)
	}
	return nil
}

// acquire has a pod ask for an address.
func (d *daemons) acquire(ctx context.Context, n *daemon) {
	n.number++
	key := attachment.Key{Network: "pods", ContainerID: strconv.Itoa(n.number), IfName: "eth0"}
	d.parts.Start(n.instance, func(context.Context) error {
		if _, err := n.src.Acquire(ctx, source.Request{Key: key}); err == nil {
			n.granted()
		}
		return nil
	})
}

// burst starts pods on a node.
func (d *daemons) burst(ctx context.Context, n *daemon, pods int) {
	n.mu.Lock()
	n.asked, n.starts = time.Now(), false
	n.pods, n.waiting = n.pods+pods, n.waiting+pods
	n.warmed = time.Time{}
	n.mu.Unlock()
	for range pods {
		d.acquire(ctx, n)
	}
}

// end removes the pods of a burst.
func (d *daemons) endBurst(n *daemon, pods int) {
	n.mu.Lock()
	n.pods -= pods
	n.mu.Unlock()
	for i := range pods {
		n.src.Release(attachment.Key{Network: "pods", ContainerID: strconv.Itoa(n.number - i), IfName: "eth0"})
	}
}

// longest is a bound on the virtual time until all nodes are warm: 2,000 nodes need hours beside a client that never backs off.
const longest = 24 * time.Hour

// wait returns once all nodes are warm.
func (d *daemons) wait(ctx context.Context) error {
	for latest := time.Now().Add(longest); ; <-time.After(time.Second) {
		cold := slices.IndexFunc(d.list, func(n *daemon) bool { return !n.warm() })
		switch {
		case cold < 0:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(latest):
			return fmt.Errorf("%s is not warm after %v; calls: %v", d.list[cold].instance, longest, d.ec2.outcome().Calls)
		}
	}
}

// outcome returns what the nodes that asked since begin have measured, with times from since or, of a node, from when it
// asked.
func (d *daemons) outcome(begin, since time.Time) Outcome {
	out := d.ec2.outcome()
	var each []time.Duration
	for _, n := range d.list {
		n.mu.Lock()
		if !n.asked.Before(begin) {
			out.Daemons.First = max(out.Daemons.First, n.served.Sub(since))
			out.Last = max(out.Last, n.warmed.Sub(since))
			from := since
			if n.asked.After(from) {
				from = n.asked
			}
			each = append(each, n.warmed.Sub(from))
		}
		n.mu.Unlock()
	}
	slices.Sort(each)
	out.Median, out.Daemons.Worst = each[(len(each)-1)/2], each[len(each)-1]
	return out
}

func (d *daemons) close(stop context.CancelFunc) error {
	stop()
	return d.parts.Wait()
}

// daemon is a node with its daemon.
type daemon struct {
	instance string
	src      *enisource.Source
	stop     context.CancelFunc
	number   int // of pods ever

	mu        sync.Mutex // guards all below
	addresses int        // for pods, in the last inventory
	pods      int
	waiting   int
	starts    bool // until the first pod has an address
	asked     time.Time
	served    time.Time // when the last pod that waited, or the first pod of the node, got an address
	warmed    time.Time // zero while the node is not warm
}

// Load implements enisource.InventoryStore.
func (n *daemon) Load() (inv eni.Inventory, ok bool, err error) { return inv, false, nil }

// Save implements enisource.InventoryStore.
func (n *daemon) Save(inv eni.Inventory) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.addresses = 0
	for _, e := range inv.ENIs {
		if e.Serves {
			n.addresses += len(e.Addresses)
		}
	}
	if n.warmed.IsZero() && n.isWarm() {
		n.warmed = time.Now()
	}
	return nil
}

func (n *daemon) isWarm() bool {
	return n.addresses >= ipam.DefaultAWS().Demand(addressesOfENI, false, ipam.Usage{Used: n.pods}).Want
}

func (n *daemon) warm() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.warmed.IsZero()
}

func (n *daemon) granted() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.waiting--
	if !n.starts || n.served.IsZero() {
		n.served = time.Now()
	}
	if n.warmed.IsZero() && n.isWarm() {
		n.warmed = time.Now()
	}
}

// links is a data path whose links of ENIs are there at once.
type links struct{}

// SetENI implements enisource.Datapath.
func (links) SetENI(context.Context, eni.ENI) error { return nil }

// RemoveENI implements enisource.Datapath.
func (links) RemoveENI(context.Context, string) error { return nil }

// ChangedLinks implements enisource.Datapath.
func (links) ChangedLinks(context.Context) (map[string]source.LinkChange, error) { return nil, nil }

var (
	_ enisource.Datapath       = links{}
	_ enisource.InventoryStore = (*daemon)(nil)
)

// inNodes plays a scenario with daemons, and stops them.
func inNodes(ctx context.Context, o Order, play func(context.Context, *daemons) (Outcome, error)) (Outcome, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	d, ctx := newDaemons(ctx, o)
	out, err := play(ctx, d)
	if err != nil {
		return Outcome{}, err
	}
	return out, d.close(stop)
}

// inWarmNodes is inNodes with nodes that are warm and at rest, beside the order's foreign client.
func inWarmNodes(ctx context.Context, o Order, play func(context.Context, *daemons) (Outcome, error)) (Outcome, error) {
	return inNodes(ctx, o, func(ctx context.Context, d *daemons) (Outcome, error) {
		if err := d.quietly(ctx, o); err != nil {
			return Outcome{}, err
		}
		d.ec2.startForeign(ctx, o.Limits)
		d.ec2.Front.ResetStats()
		return play(ctx, d)
	})
}

// measured waits until all nodes are warm, and returns what those that asked since begin have measured from since on. The
// bound is the time of the calls within the limits, or least if that is longer.
func (d *daemons) measured(ctx context.Context, o Order, begin, since time.Time, least time.Duration) (Outcome, error) {
	if err := d.wait(ctx); err != nil {
		return Outcome{}, err
	}
	out := d.outcome(begin, since)
	out.Bound = max(o.Limits.MinDuration(out.Calls), least)
	return out, nil
}

// runNodeStart starts all daemons at once.
func runNodeStart(ctx context.Context, o Order) (Outcome, error) {
	return inNodes(ctx, o, func(ctx context.Context, d *daemons) (Outcome, error) {
		d.ec2.startForeign(ctx, o.Limits)
		begin := time.Now()
		if err := d.startAll(ctx); err != nil {
			return Outcome{}, err
		}
		return d.measured(ctx, o, begin, begin, 0)
	})
}

func (d *daemons) startAll(ctx context.Context) error {
	for _, id := range d.ec2.instances {
		if err := d.start(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// quietly has all nodes warm without limits, and waits until they are at rest.
func (d *daemons) quietly(ctx context.Context, o Order) error {
	d.ec2.Front.SetBuckets(nil, nil)
	if err := d.startAll(ctx); err != nil {
		return err
	}
	if err := d.wait(ctx); err != nil {
		return err
	}
	<-time.After(5 * time.Minute)
	l := o.Limits.Options()
	d.ec2.Front.SetBuckets(l.Shared, l.Buckets)
	<-time.After(10 * time.Minute)
	d.ec2.Front.ResetStats()
	d.ec2.Front.ResetCalls()
	return nil
}

// runNodeRest lets an hour pass.
func runNodeRest(ctx context.Context, o Order) (Outcome, error) {
	return inWarmNodes(ctx, o, func(ctx context.Context, d *daemons) (Outcome, error) {
		<-time.After(2 * time.Hour) // until the intervals of listings fit
		d.ec2.Front.ResetStats()
		<-time.After(time.Hour)
		return d.ec2.outcome(), nil
	})
}

// replacedEvery is the time between two new nodes of a rolling replacement: EC2 launches two instances a second beyond
// the first thousand (EC2 Developer Guide, "Request throttling for the Amazon EC2 API").
const replacedEvery = 500 * time.Millisecond

// runNodeReplace replaces a fifth of the nodes.
func runNodeReplace(ctx context.Context, o Order) (Outcome, error) {
	return inWarmNodes(ctx, o, func(ctx context.Context, d *daemons) (Outcome, error) {
		begin := time.Now()
		for i := range o.Nodes / 5 {
			if i > 0 {
				<-time.After(replacedEvery)
			}
			if err := d.replace(ctx, 0); err != nil {
				return Outcome{}, err
			}
		}
		return d.measured(ctx, o, begin, begin, time.Duration(o.Nodes/5)*replacedEvery)
	})
}

// replace terminates a node, and starts another one.
func (d *daemons) replace(ctx context.Context, at int) error {
	old := d.list[at]
	d.list = slices.Delete(d.list, at, at+1)
	old.stop()
	d.ec2.State.Terminate(old.instance)
	id := fmt.Sprintf("i-%017x", len(d.ec2.instances))
	d.ec2.instances = append(d.ec2.instances, id)
	d.ec2.State.AddInstance(id, instanceType, primaries)
	return d.start(ctx, id)
}

// Churn of an hour.
const (
	burstPods = 30 // more than an ENI
	burstLife = 10 * time.Minute
)

// runNodeChurn: within an hour each node has a burst of pods, which end after ten minutes, and a tenth of the nodes is replaced.
func runNodeChurn(ctx context.Context, o Order) (Outcome, error) {
	return inWarmNodes(ctx, o, func(ctx context.Context, d *daemons) (Outcome, error) {
		begin := time.Now()
		for i, at := range d.dice.Perm(o.Nodes) {
			<-time.After(time.Hour / time.Duration(o.Nodes))
			if i%10 == 0 {
				if err := d.replace(ctx, at); err != nil {
					return Outcome{}, err
				}
				continue
			}
			n := d.list[at]
			d.burst(ctx, n, burstPods)
			d.parts.Start("the end of a burst", func(ctx context.Context) error {
				select {
				case <-ctx.Done():
				case <-time.After(burstLife):
					d.endBurst(n, burstPods)
				}
				return nil
			})
		}
		return d.measured(ctx, o, begin, begin, time.Hour)
	})
}

const outageTime = 5 * time.Minute

// runNodeOutage: EC2 fails for five minutes, while a fifth of the nodes gets more pods than it has addresses for.
func runNodeOutage(ctx context.Context, o Order) (Outcome, error) {
	return inWarmNodes(ctx, o, func(ctx context.Context, d *daemons) (Outcome, error) {
		d.ec2.Front.Inject(cloudfake.Fault{Err: cloudfake.Err(cloud.Transient, "InternalError")})
		begin := time.Now()
		const many = 2*addressesOfENI + 1
		for i := range o.Nodes / 5 {
			<-time.After(outageTime / time.Duration(o.Nodes/5+1))
			d.burst(ctx, d.list[i], many)
		}
		<-time.After(time.Until(begin.Add(outageTime)))
		d.ec2.Front.ClearFaults()
		d.ec2.Front.ResetStats()
		return d.measured(ctx, o, begin, time.Now(), 0)
	})
}
