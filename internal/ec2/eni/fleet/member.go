package fleet

import (
	"context"
	"math"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
)

// member is one node of the fleet.
type member struct {
	name, instance string
	rec            *eni.Reconciler
	node           *countedNode

	// Guarded by the fleet's lock:
	places   places        // VPCs of its ENIs
	settings *eni.Settings // for the next pass; nil if unchanged
	next     Node          // for the next pass
	at       time.Time     // when the next pass is due
	index    int           // in the heap of due times; -1 if absent
	running  bool          // a pass is in progress
	again    bool          // another pass follows it
	againAt  time.Time     // when that pass is due
	removed  bool

	after, successor *member // the instance's previous member, whose pass must end first, and its next one
}

// countedNode is a Node whose published addresses are recorded as held by the node. The Node can be replaced
// between passes.
type countedNode struct {
	Node
	holders *holders // updated by Publish
}

// namedObserver passes the activity of a node's reconciler to the fleet's observer.
type namedObserver struct {
	name string
	to   Observer
}

// Acted implements eni.Observer.
func (o namedObserver) Acted(a plan.Action, class cloud.Class, err error, took time.Duration) {
	o.to.Acted(o.name, a, class, err, took)
}

// Collected implements eni.Observer: the fleet collects orphans itself.
func (namedObserver) Collected(eni.Collected) {}

// Reconciled implements eni.Observer.
func (namedObserver) Reconciled(time.Duration) {}

func (f *Fleet) newMember(name, instanceID string, s eni.Settings, seed eni.Inventory, n Node) (*member, error) {
	m := &member{name: name, instance: instanceID, node: &countedNode{n, f.holders}, index: -1}
	if s.VPCID != "" {
		m.places.vpcs = []string{s.VPCID}
	}
	c := eni.Config{
		Settings: s, InstanceID: instanceID, Cluster: f.cfg.Cluster, Adopt: f.cfg.Adopt,
		Cloud: f.cfg.Cloud, Node: m.node, Shared: f.shared,
		Rand:  rand.New(rand.NewPCG(uint64(f.cfg.Random(math.MaxInt64)), 0)),
		Clock: f.cfg.Clock, Logger: f.cfg.Logger.With("node", name),
		Timing: f.cfg.Timing,
		Fleet: &eni.Fleet{
			Lister:      f.observatory,
			Elsewhere:   func(subnetID string, p netip.Prefix) string { return f.holders.other(instanceID, subnetID, p) },
			Committed:   func() []eni.Release { return m.node.Committed() },
			RateLimited: func() { m.node.Reconciled(m.rec.Status()) },
			Beside:      func(call func()) { f.work.Go(func() { call(); f.Kick(name) }) },
		},
	}
	if f.cfg.Observer != nil {
		c.Observer = namedObserver{name, f.cfg.Observer}
	}
	var err error
	if m.rec, err = eni.New(c); err != nil {
		return nil, err
	}
	m.rec.Seed(seed)
	if seed.InstanceID == instanceID {
		f.holders.set(seed)
	}
	f.mu.Lock()
	since := f.ended[instanceID]
	f.mu.Unlock()
	if seed.InstanceID == instanceID && seed.At.After(since) {
		since = seed.At
	}
	if now := f.cfg.Clock.Now(); since.After(now) { // the clock was set back
		since = now
	}
	m.rec.ObserveSince(since)
	return m, nil
}

// pass reconciles a node as far as possible now, and returns when the next pass is due at the latest.
func (f *Fleet) pass(ctx context.Context, m *member, s *eni.Settings) time.Duration {
	if s != nil {
		if err := m.rec.Configure(*s); err != nil {
			f.cfg.Logger.Error("settings not applied", "node", m.name, "err", err)
		}
	}
	if l, ok := f.observatory.take(m.instance); ok {
		m.rec.Observed(ctx, l)
	}
	return m.rec.Reconcile(ctx)
}
