// Package fleet reconciles the ENIs of many nodes in one process: one eni.Reconciler per node, and their shared
// state. It does not depend on Kubernetes.
//
//	fleet.go        the operator's interface: Set, Remove, Kick, Invalidate, CheckInstance
//	run.go          passes of nodes, full listings, and the collection of orphans
//	workers.go      goroutines that make passes
//	schedule.go     when the next pass of each node is due
//	member.go       one node with its reconciler
//	holders.go      which node holds which address
//	observatory.go  listings and descriptions for all nodes together
//	instances.go    descriptions of instances
//	gatherer.go     requests of many nodes in one call
package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/retry"
)

// Fleet is the ENI allocator for all nodes. All methods may be called concurrently.
type Fleet struct {
	cfg         Config
	shared      *eni.Shared
	holders     *holders
	observatory *observatory
	work        sync.WaitGroup
	workers     *workers

	mu      sync.Mutex // guards all below, and the fields of members marked so; never held during a call
	ctx     context.Context
	running chan struct{} // closed by Run
	members map[string]*member
	serving map[string]int       // number of members by instance
	leaving map[string]*member   // by instance: removed during a pass
	ended   map[string]time.Time // by instance: when its work ended, if recently
	due     schedule
}

// New checks the configuration.
func New(cfg Config) (*Fleet, error) {
	if err := cfg.withDefaults(); err != nil {
		return nil, fmt.Errorf("fleet: %w", err)
	}
	f := &Fleet{
		cfg: cfg, holders: newHolders(), due: schedule{wake: retry.NewSignal()},
		running: make(chan struct{}), workers: newWorkers(), members: map[string]*member{}, serving: map[string]int{}, leaving: map[string]*member{}, ended: map[string]time.Time{},
	}
	f.shared = eni.NewShared(cfg.Cloud, cfg.Clock, f.kickAll)
	f.observatory = newObservatory(&f.cfg, f.shared.Catalog.Subnets, f.spawn, f.known)
	f.observatory.had, f.observatory.ended = f.holders.holds, f.resume
	return f, nil
}

// Set adds a node, or changes the settings of a node with the same name and instance. A node with the same name and
// another instance is a new node. Seed is the inventory last published for the instance, by this or an earlier
// process; it is used only for new nodes.
func (f *Fleet) Set(name, instanceID string, s eni.Settings, seed eni.Inventory, n Node) error {
	f.mu.Lock()
	m, ok := f.members[name]
	if ok && m.instance == instanceID {
		defer f.mu.Unlock()
		if err := s.Policy.Validate(); err != nil {
			return fmt.Errorf("node %s: %w", name, err)
		}
		m.settings, m.next = &s, n
		f.due.sooner(m, f.cfg.Clock.Now().Add(burstWindow))
		return nil
	}
	f.mu.Unlock()
	m, err := f.newMember(name, instanceID, s, seed, n)
	if err != nil {
		return fmt.Errorf("node %s: %w", name, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.remove(name)
	if old := f.leaving[instanceID]; old != nil {
		m.after, old.successor = old, m
	}
	f.members[name] = m
	f.serving[instanceID]++
	f.due.sooner(m, f.cfg.Clock.Now())
	return nil
}

// Remove ends the work for a node. It returns immediately; a call in flight completes, and nothing else of the node
// changes. The node's ENIs are deleted with the instance, or collected as orphans once the instance has
// vanished.
func (f *Fleet) Remove(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.remove(name)
}

// Kick reports that a node's address usage changed. It never blocks.
func (f *Fleet) Kick(name string) { f.tell(name, burstWindow, (*eni.Reconciler).Kick) }

// Invalidate reports that the published inventory of a node may differ from the cloud, because someone else wrote
// it. Nothing is published before the next observation.
func (f *Fleet) Invalidate(name string) { f.tell(name, 0, (*eni.Reconciler).Invalidate) }

// CheckInstance reports that a node's instance may have been stopped or started: its state is requested once from
// the cloud.
func (f *Fleet) CheckInstance(name string) { f.tell(name, 0, (*eni.Reconciler).CheckInstance) }

// tell passes news to a node's reconciler, if there is one, and schedules a pass within a time.
func (f *Fleet) tell(name string, within time.Duration, news func(*eni.Reconciler)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m := f.members[name]; m != nil {
		news(m.rec)
		f.due.sooner(m, f.cfg.Clock.Now().Add(within))
	}
}

// Describe describes an instance, whether or not it is a node's. Concurrent requests share a call. An unknown
// instance is an error of class cloud.Gone. Describe blocks until Run.
func (f *Fleet) Describe(ctx context.Context, instanceID string) (cloud.Instance, error) {
	select {
	case <-ctx.Done():
		return cloud.Instance{}, ctx.Err()
	case <-f.running:
	}
	in, err := f.observatory.Instance(ctx, instanceID)
	if err != nil {
		return in, fmt.Errorf("describe instance %s: %w", instanceID, err)
	}
	return in, nil
}

// Subnets lists the known subnets, by ID, each with its free addresses minus those reserved for calls in flight.
func (f *Fleet) Subnets() []cloud.Subnet { return f.shared.Catalog.Subnets.Free() }

// spawn runs work until it is done or the fleet ends.
func (f *Fleet) spawn(work func(context.Context)) {
	f.mu.Lock()
	ctx := f.ctx
	f.mu.Unlock()
	f.work.Go(func() { work(ctx) })
}

// known returns the instances of all nodes and the locations of their ENIs.
func (f *Fleet) known() map[string]places {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make(map[string]places, len(f.members))
	for _, m := range f.members {
		out[m.instance] = m.places
	}
	return out
}

var errRunning = errors.New("fleet: Run called twice")

// Config is the configuration of a Fleet.
type Config struct {
	Cluster  string   // value of eni.TagCluster
	Adopt    []string // systems whose ENIs are the nodes' (eni.Adoptable)
	Cloud    cloud.API
	Observer Observer     // may be nil
	Clock    clock.Clock  // the system clock if nil
	Logger   *slog.Logger // discards everything if nil
	// Random returns a number from 0 to below n, for jitter; it is called concurrently. Random numbers if nil.
	Random func(n int64) int64

	eni.Timing
}

// jitter spreads d over half to one and a half of it.
func (c *Config) jitter(d time.Duration) time.Duration {
	return d/2 + time.Duration(c.Random(int64(d)+1))
}

// Node is the consumer of one node's addresses: they are published to it, and it reports their usage. Calls for one
// node come from one goroutine at a time.
type Node interface {
	eni.Node
	// Reconciled is called with the node's status after every pass, and during a pass whose calls wait long for
	// the cloud's rate limit.
	Reconciled(eni.Status)
	// Committed lists the releases that were recorded and that the cloud has not made yet: see eni.Fleet.
	Committed() []eni.Release
}

// Observer receives all activity, for metrics, from many goroutines concurrently. Its methods must return
// quickly.
type Observer interface {
	// Acted is called after each action or observation of a node. The action includes its subnet, also for
	// Assign. The class is Unknown if err is nil.
	Acted(node string, a plan.Action, class cloud.Class, err error, took time.Duration)
	// Listed is called after each full listing.
	Listed(took time.Duration, err error)
	// Collected is called after each search for orphans.
	Collected(found eni.Collected)
}

func (c *Config) withDefaults() error {
	var errs []error
	if c.Cluster == "" {
		errs = append(errs, errors.New("Cluster: required to identify Berth's ENIs"))
	}
	if c.Cloud == nil {
		errs = append(errs, errors.New("Cloud: required"))
	}
	if c.Clock == nil {
		c.Clock = clock.Real{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Random == nil {
		c.Random = rand.Int64N
	}
	c.Timing = c.Timing.WithDefaults()
	return errors.Join(errs...)
}
