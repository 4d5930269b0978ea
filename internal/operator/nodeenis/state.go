package nodeenis

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/nodenetwork"
	"github.com/berthnet/berth/internal/retry"
)

// state is the state of one node, by subject. The node's lock guards it. Its methods decide and do no
// I/O.
type state struct {
	obj         *v1alpha1.NodeNetwork // the newest version seen, shared with the cache: read-only
	fleet       fleetState
	handshake   handshake
	ownership   ownership
	eligibility eligibility
	config      configuration
	liveness    liveness
	demand      demand
	writes      writes
	problem     reportedProblem
	settings    func() (known bool, message string) // Options.Settings
	sums        sums                                // as of the last scrape
}

// newState returns the state for an object at now. If other is set, the object had another instance until
// now, so its content does not apply.
func newState(o *v1alpha1.NodeNetwork, other bool, now time.Time) state {
	s := state{
		obj:       o,
		fleet:     fleetState{primaries: map[netip.Prefix]bool{}, passBegan: now},
		handshake: newHandshake(), ownership: ownership{observeFirst: true, suppressed: map[netip.Prefix]time.Time{}},
		config:   configuration{seed: eni.Inventory{InstanceID: o.Spec.InstanceID, InstanceType: o.Spec.InstanceType}},
		liveness: liveness{reportedAt: o.CreationTimestamp.Time},
	}
	s.problem.reason, s.problem.note, _ = problemOf(o) // as reported by the previous writer
	if other {
		return s
	}
	s.fleet.inherited = len(o.Status.Conditions) > 0
	s.config.seed = seed(o, now)
	if len(o.Spec.IPAM.Available) > 0 {
		s.liveness.readiness = ready // it once was; changes since then may have gone unnoticed
	}
	s.handshake.resume(o, s.config.seed.Releasing, now)
	return s
}

// setInventory sets the inventory to publish.
func (s *state) setInventory(inv *eni.Inventory) {
	s.ownership.observeFirst = false
	s.fleet.setInventory(inv)
	s.handshake.setInventory(inv)
}

// change describes what a new version of an object means for its node.
type change struct {
	foreign bool // somebody else wrote the operator's fields
	usage   bool // usage changed, or the daemon confirmed addresses
}

// update applies a new version of the object, unless it is older than the current one. Addresses that
// another operator took out of available are suppressed for settle.
func (s *state) update(o *v1alpha1.NodeNetwork, now time.Time, settle time.Duration) change {
	if o.UID != s.obj.UID || !nodenetwork.Newer(o, s.obj) {
		if o.UID == s.obj.UID && o.ResourceVersion == s.obj.ResourceVersion {
			s.obj = o // share the cache's copy of a write's reply, so that the other copy is freed
		}
		return change{}
	}
	before, old := s.obj, s.counter().byENI()
	s.obj = o
	c := change{foreign: s.ownership.foreign(before, o)}
	if c.foreign {
		s.ownership.overwritten(before, o, now, settle)
		s.handshake.adoptReleasing(o)
	}
	if sameReport(before, o) {
		return c // for example after an own write
	}
	s.liveness.reportedAt = now
	was, is := &before.Status.IPAM, &o.Status.IPAM
	c.usage = was.Waiting != is.Waiting || !slices.Equal(was.MissingLinks, is.MissingLinks) || !maps.Equal(old, s.counter().byENI()) ||
		len(s.handshake.candidates) > 0 && !slices.Equal(was.Released, is.Released)
	return c
}

// sameReport reports whether two versions have the same report of the daemon.
func sameReport(x, y *v1alpha1.NodeNetwork) bool {
	a, b := &x.Status.IPAM, &y.Status.IPAM
	return a.Waiting == b.Waiting && a.InstanceID == b.InstanceID && slices.Equal(a.Released, b.Released) && slices.Equal(a.MissingLinks, b.MissingLinks) && maps.Equal(a.Used, b.Used)
}

// update applies a new version of the object and notifies the fleet and, by Events, users.
func (n *node) update(ctx context.Context, o *v1alpha1.NodeNetwork) change {
	n.mu.Lock()
	c := n.state.update(o, n.c.now(), n.c.o.Settle)
	n.mu.Unlock()
	n.notify(ctx, c)
	return c
}

// timed is a part of the state that becomes due at a certain time, without an event.
type timed interface {
	// due returns the first time after now at which there may be something to do, or zero.
	due(now time.Time) time.Time
}

// timers returns all timed parts, in the order in which Reconcile handles them
// (TestEveryTimedPartIsAmongTheTimers). Demand, and candidates that the fleet no longer asks for, need no
// timer: each pass of the fleet checks them.
func (s *state) timers() []timed {
	return []timed{
		&s.eligibility, // query EC2 again for proof, or end the delay of a recreated object
		&s.ownership,   // publish suppressed addresses again
		&s.liveness,    // delete the object of a node that is gone
		&s.writes,      // retry a request, or write a delayed status
	}
}

// wake returns the first time after since at which there may be something to do, or zero if that depends
// on a change.
func (s *state) wake(since time.Time) time.Time {
	var moments []time.Time
	for _, t := range s.timers() {
		moments = append(moments, t.due(since))
	}
	return retry.Earliest(since, moments...)
}

// schedule queues the node for when the first of its timers is due. The queue keeps the earliest time of
// each node, so every reconciliation schedules the next one. since is when the reconciliation began:
// parts that became due after that are handled immediately, as the reconciliation may have looked at
// them before.
func (n *node) schedule(since time.Time) {
	n.mu.Lock()
	at := n.state.wake(since)
	n.mu.Unlock()
	if !at.IsZero() {
		n.c.queue.AddAfter(n.name, max(0, at.Sub(n.c.now())))
	}
}

func (e *eligibility) due(now time.Time) time.Time {
	return retry.Earliest(now, e.askAt, e.heldUntil)
}

func (w *ownership) due(now time.Time) time.Time {
	return retry.Earliest(now, slices.Collect(maps.Values(w.suppressed))...)
}

func (l *liveness) due(now time.Time) time.Time { return retry.Earliest(now, l.deleteAt) }

func (w *writes) due(now time.Time) time.Time { return retry.Earliest(now, w.retry.Until, w.newsAt) }

// fleetState is the fleet's last report about a node.
type fleetState struct {
	inv       *eni.Inventory        // to be published; nil before the first observation
	primaries map[netip.Prefix]bool // the primary addresses of inv's ENIs
	status    eni.Status
	inherited bool      // the object has the conditions of an earlier operator
	passBegan time.Time // approximate start of the fleet's current pass
}

func (f *fleetState) setInventory(inv *eni.Inventory) {
	f.inv = inv
	clear(f.primaries)
	for i := range inv.ENIs {
		if a := inv.ENIs[i].PrimaryIPv4; a.IsValid() {
			f.primaries[cloud.HostPrefix(a)] = true
		}
	}
}

// unmarked returns the addresses and prefixes that pods may have, each with its ENI, except those of
// marked ENIs. If pods get no IPv6 addresses, it omits single IPv6 addresses, which a subnet may assign to
// each new ENI, except published ones: pods may still have these.
func (f *fleetState) unmarked(o *v1alpha1.NodeNetwork) map[netip.Prefix]string {
	out := podAddresses(f.inv)
	six := f.inv.Families.Has(ipfamily.IPv6)
	maps.DeleteFunc(out, func(p netip.Prefix, id string) bool {
		foreign := !six && p.IsSingleIP() && ipfamily.Of(p.Addr()) == ipfamily.IPv6 && nodenetwork.ENIOf(o, p) == ""
		return foreign || markedENI(o, id)
	})
	return out
}

// podAddresses returns the addresses and prefixes that pods may have, each with its ENI.
func podAddresses(inv *eni.Inventory) map[netip.Prefix]string {
	size := 0
	for i := range inv.ENIs {
		e := &inv.ENIs[i]
		size += len(e.Addresses) + len(e.IPv6) + len(e.Prefixes) + len(e.IPv6Prefixes)
	}
	out := make(map[netip.Prefix]string, size)
	for i := range inv.ENIs {
		e := &inv.ENIs[i]
		if !e.Serves {
			continue
		}
		for _, a := range slices.Concat(e.Addresses, e.IPv6) {
			out[cloud.HostPrefix(a)] = e.ID
		}
		for _, p := range slices.Concat(e.Prefixes, e.IPv6Prefixes) {
			out[p] = e.ID
		}
	}
	return out
}

// seed returns the inventory that was published in the object. Marked addresses are still being
// released; candidates are not.
func seed(o *v1alpha1.NodeNetwork, now time.Time) eni.Inventory {
	r := nodenetwork.Read(o)
	inv := r.Inventory
	inv.At = publishedAt(o)
	for _, p := range r.Unassigning {
		inv.Releasing = append(inv.Releasing, eni.Release{Prefix: p, ENI: nodenetwork.ENIOf(o, p), Since: now})
	}
	return inv
}
