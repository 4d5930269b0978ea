package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/foreign"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/source"
)

// Upkeep is the part of the data path that keeps the node's own state. Package uplinks implements it.
type Upkeep interface {
	// Watch reports kernel changes until ctx ends (datapath.Node.Watch).
	Watch(ctx context.Context) (<-chan datapath.Event, error)
	// Repair sets up the node's own state and all pods, removes other Berth state except the
	// pod links in spare, and returns the repairs. It returns source.ErrSupplyUnknown and does nothing
	// while the source does not know its blocks, or if there is state of an uplink that is not set
	// up yet and for which mayNeed returns true.
	Repair(ctx context.Context, pods []datapath.Pod, spare []string, mayNeed func(uplink int) bool) ([]string, error)
	// ForwardPolicy finds packet filters that drop pods' packets by default.
	ForwardPolicy(ctx context.Context) ([]datapath.Finding, error)
	// ARPFiltered reports whether the kernel drops pods' ARP requests (datapath.Node.ARPFiltered).
	ARPFiltered() bool
	// NodeAddresses lists the addresses that the node itself has (datapath.Node.NodeAddresses), and
	// RemoveNodeAddress removes one.
	NodeAddresses(ctx context.Context) ([]datapath.NodeAddress, error)
	RemoveNodeAddress(ctx context.Context, addr netip.Addr) error
	// ForeignRoutes lists the routes of other software to single addresses (datapath.Node.ForeignRoutes).
	ForeignRoutes(ctx context.Context) ([]datapath.ForeignRoute, error)
}

// Foreign observes other software on the node. *foreign.Observer implements it.
type Foreign interface {
	// Changed reports whether another pod network has handed out or taken back addresses, or has started, since the last
	// Observe. It takes microseconds.
	Changed() bool
	// Observe returns who holds addresses. routes are those of the data path, records those of the daemon.
	Observe(ctx context.Context, routes []datapath.ForeignRoute, records []attachment.Record) foreign.Observation
}

// repairDebounce batches the events of one disturbance.
const repairDebounce = 200 * time.Millisecond

// repairer keeps the kernel in the recorded state.
type repairer struct {
	upkeep     Upkeep
	kernel     Kernel
	store      *attachment.Store
	source     source.Source
	conditions *conditions
	quarantine *quarantine
	repairs    *prometheus.CounterVec
	interval   time.Duration
	// again restores missing state of an attachment, unless its record has changed.
	again     func(ctx context.Context, seen attachment.Record) error
	parts     parts // parts that receive link events
	addresses nodeAddresses
	foreign   Foreign    // nil: other software is not looked at
	looking   sync.Mutex // serializes lookAtAddresses
	clock     clock.Clock
	log       *slog.Logger
}

func newRepairer(o Options, d *Daemon) *repairer {
	return &repairer{
		upkeep: o.Repair.Upkeep, kernel: o.Kernel, store: o.Store, source: o.Source, conditions: d.conditions, quarantine: d.quarantine,
		repairs: o.Metrics.repairs, interval: o.RepairInterval, again: d.attachments.addAgainLater, parts: o.Parts,
		addresses: nodeAddresses{remove: o.Repair.RemoveForeignAddresses, tell: o.Repair.Tell},
		foreign:   o.Repair.Foreign, clock: o.Clock, log: o.Log,
	}
}

// run repairs changes by other software, on kernel events and at an interval, until ctx ends.
//
// A failed repair is retried with growing delays up to the interval: for a pod whose namespace is
// gone it fails until the pod's DEL.
func (r *repairer) run(ctx context.Context) {
	var beside sync.WaitGroup
	defer beside.Wait()
	beside.Go(func() { r.followOthers(ctx) })
	var events <-chan datapath.Event
	failures := 0
	for {
		if events == nil {
			events = r.watch(ctx)
		}
		wait := r.interval
		if r.repair(ctx) {
			failures = 0
		} else {
			wait = min(wait, retry.Delay(againAfter, wait, failures))
			failures++
		}
		due := r.clock.After(wait)
		for again := false; !again; {
			if events, again = r.await(ctx, events, due); ctx.Err() != nil {
				return
			}
		}
	}
}

// await returns when a repair may be needed. It watches again when the events end.
func (r *repairer) await(ctx context.Context, events <-chan datapath.Event, due <-chan time.Time) (_ <-chan datapath.Event, again bool) {
	select {
	case <-ctx.Done():
	case e, ok := <-events:
		if !ok {
			return r.watch(ctx), false
		}
		again = r.disturbed(e)
		if look := e.Kind == datapath.AddressChanged; again || look {
			again = r.drainEvents(ctx, events, r.clock.After(repairDebounce)) || again
			if !again {
				_ = r.lookAtAddresses(ctx) // it is repeated at the interval
			}
		}
	case <-due:
		again = true
	}
	return events, again
}

// watch returns nil if watching fails. Repairs then happen at the interval only, and the next one tries to
// watch again.
func (r *repairer) watch(ctx context.Context) <-chan datapath.Event {
	events, err := r.upkeep.Watch(ctx)
	if err != nil {
		if ctx.Err() == nil {
			r.log.Warn("watching the kernel failed; repairs happen at the interval only", "err", err)
		}
		return nil
	}
	return events
}

// disturbed passes an event on to the source and the parts, and reports whether a repair may be
// needed. A link that is not a pod's needs none: it carries no Berth state when it appears, and
// takes its state with it when it vanishes.
func (r *repairer) disturbed(e datapath.Event) bool {
	if e.Kind == datapath.AddressChanged {
		return false
	}
	if e.Kind != datapath.StateLost && e.Kind != datapath.PortStateLost {
		r.source.Kick()
	}
	if e.Kind != datapath.StateLost || e.Link != "" {
		for _, p := range r.parts {
			p.LinkChanged(e.Link, e.MAC)
		}
	}
	if e.Kind == datapath.PortStateLost || (e.Kind == datapath.LinkAppeared || e.Kind == datapath.LinkVanished) && !strings.HasPrefix(e.Link, datapath.LinkPrefix) {
		return false
	}
	r.log.Debug("kernel state changed", "what", e.What) // the repair logs changes by other software
	return true
}

// drainEvents receives events until end, and reports whether a repair may be needed.
func (r *repairer) drainEvents(ctx context.Context, events <-chan datapath.Event, end <-chan time.Time) (disturbed bool) {
	for {
		select {
		case <-ctx.Done():
			return disturbed
		case <-end:
			return disturbed
		case e, ok := <-events:
			if !ok {
				return disturbed
			}
			disturbed = r.disturbed(e) || disturbed
		}
	}
}

// repair reports whether it completed.
func (r *repairer) repair(ctx context.Context) (done bool) {
	var pods []datapath.Pod
	for _, rec := range r.store.Records() {
		if rec.State == attachment.Ready && !rec.Lease.Empty() {
			pods = append(pods, PodOf(rec))
		}
	}
	did, err := r.upkeep.Repair(ctx, pods, r.quarantine.links(), r.mayNeedUplink)
	if errors.Is(err, source.ErrSupplyUnknown) {
		did, err = r.repairPods(ctx)
	}
	if len(did) > 0 {
		r.repairs.WithLabelValues().Add(float64(len(did)))
		r.log.Warn("repaired kernel state", "what", did)
	}
	if err != nil && ctx.Err() == nil {
		r.log.Warn("repairing kernel state failed, will try again", "err", err)
	}
	r.lookAtForwarding(ctx)
	r.lookAtARP()
	return r.lookAtAddresses(ctx) == nil && err == nil
}

// mayNeedUplink reports whether a pod or the source may be using an uplink. The source may not have
// listed its uplinks yet.
func (r *repairer) mayNeedUplink(number int) bool {
	groups := r.source.Snapshot().Groups
	return len(groups) == 0 ||
		slices.ContainsFunc(groups, func(g source.Group) bool { return g.Uplink == number }) ||
		slices.ContainsFunc(r.store.Records(), func(rec attachment.Record) bool { return !rec.Lease.Empty() && rec.Lease.Uplink == number })
}

// repairPods restores missing state of pods on the node and removes nothing.
func (r *repairer) repairPods(ctx context.Context) (did []string, err error) {
	inv, err := r.kernel.Inventory(ctx)
	if err != nil {
		return nil, err
	}
	var have []string
	for _, route := range inv.Routes {
		have = append(have, route.Addr.String()+" "+route.Link)
	}
	var errs []error
	for _, rec := range r.store.Records() {
		missing := rec.State == attachment.Ready && slices.ContainsFunc(rec.Lease.Held(), func(a netip.Addr) bool {
			return !slices.Contains(have, a.String()+" "+rec.HostLink)
		})
		if !missing {
			continue
		}
		if err := r.again(ctx, rec); err != nil {
			errs = append(errs, err)
			continue
		}
		did = append(did, "pod link "+rec.HostLink)
	}
	return did, errors.Join(errs...)
}

// lookAtForwarding updates the condition about other packet filters.
func (r *repairer) lookAtForwarding(ctx context.Context) {
	found, err := r.upkeep.ForwardPolicy(ctx)
	if err != nil {
		if ctx.Err() == nil {
			r.log.Warn("listing packet filters that drop forwarded packets failed", "err", err)
		}
		return
	}
	if len(found) == 0 {
		r.conditions.set(ConditionForwarding, true, "NoDropPolicy", "")
		return
	}
	reason := "DropRule"
	var messages []string
	for _, f := range found {
		if messages = append(messages, f.Message); !f.Rule {
			reason = "DropPolicy"
		}
	}
	r.conditions.set(ConditionForwarding, false, reason, strings.Join(messages, "; "))
}

// lookAtARP updates the condition about pods' ARP requests. Pods do not need ARP, so a kernel that
// cannot drop it shows no other symptom.
func (r *repairer) lookAtARP() {
	switch {
	case r.upkeep.ARPFiltered():
		r.conditions.set(ConditionARP, true, "Dropped", "")
	default:
		r.conditions.set(ConditionARP, false, "NotSupported", "this kernel has no nftables tables of family arp (CONFIG_NF_TABLES_ARP): "+
			"a pod that sends ARP requests without end can fill the node's neighbour table")
	}
}
