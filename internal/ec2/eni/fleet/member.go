package fleet

import (
	"context"
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

	// What follows is guarded by the fleet's lock.
	places   places        // where its ENIs are
	settings *eni.Settings // for the next pass; nil: no change
	next     Node          // likewise
	at       time.Time     // when the next pass is due
	index    int           // in the heap of due times; -1: not in it
	running  bool          // a pass is in progress
	again    bool          // another is due after it
	againAt  time.Time     // when
	removed  bool
	after    *member // the same instance's last member, whose pass must end first
}

// countedNode is a Node that records its addresses as held by the node. The Node can be exchanged
// between passes.
type countedNode struct {
	Node
	holders *holders // updated by Publish
}

// namedObserver passes what a node's reconciler does on to the fleet's observer.
type namedObserver struct {
	name string
	to   Observer
}

// Acted implements eni.Observer.
func (o namedObserver) Acted(a plan.Action, class cloud.Class, err error, took time.Duration) {
	o.to.Acted(o.name, a, class, err, took)
}

// Collected implements eni.Observer: the fleet looks for orphans itself.
func (namedObserver) Collected(eni.Collected) {}

// Reconciled implements eni.Observer.
func (namedObserver) Reconciled(time.Duration) {}

func (f *Fleet) newMember(name, instanceID string, s eni.Settings, seed eni.Inventory, n Node) (*member, error) {
	m := &member{name: name, instance: instanceID, node: &countedNode{n, f.holders}, index: -1}
	if s.VPCID != "" {
		m.places.vpcs = []string{s.VPCID}
	}
	c := eni.Config{
		Settings: s, InstanceID: instanceID, Cluster: f.cfg.Cluster,
		Cloud: f.cfg.Cloud, Node: m.node, Shared: f.shared,
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
	if now := f.cfg.Clock.Now(); since.After(now) { // a clock was set back
		since = now
	}
	m.rec.ObserveSince(since)
	return m, nil
}

// pass reconciles a node as far as possible now, and returns when to come back at the latest.
func (f *Fleet) pass(ctx context.Context, m *member, s *eni.Settings) time.Duration {
	if s != nil {
		if err := m.rec.Configure(*s); err != nil {
			f.cfg.Logger.Error("settings not taken", "node", m.name, "err", err)
		}
	}
	if l, ok := f.observatory.take(m.instance); ok {
		m.rec.Observed(ctx, l)
	}
	return m.rec.Reconcile(ctx)
}
