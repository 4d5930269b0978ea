package eni

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/cloud"
)

// Reconciler brings one node's ENIs to its policy. Reconcile (or Run) is
// called by one goroutine at a time; Kick, Status and Seed by any.
type Reconciler struct {
	cfg  Config
	kick chan struct{}

	// What follows belongs to the goroutine in Reconcile.
	view      *view
	limits    cloud.Limits
	itype     string
	zone, vpc string
	replied   time.Time            // when a reply last gave the node something
	confirmed time.Time            // last full observation
	observeAt time.Time            // when the next is due
	lookAt    map[string]time.Time // ENIs to describe singly, and when
	collectAt time.Time
	pending   *step // a throttled step: it alone comes next
	unsure    map[string]unsureAssign
	leaving   map[string]time.Time // ENIs withdrawn from the node, the detachment not confirmed
	subnetsAt time.Time            // when free counts were last asked for
	starved   bool                 // the node would grow if its subnets had room
	refusedAt time.Time            // until when no ENI is attached: the cloud said the instance is full
	retryAt   time.Time            // when a full subnet is worth another try
	excess    excess
	gates     map[gate]*backoff
	resumed   bool // a stored intent was looked for

	mu     sync.Mutex // guards status
	status Status
}

// New checks the configuration and returns a reconciler that has observed
// nothing yet.
func New(cfg Config) (*Reconciler, error) {
	if err := cfg.withDefaults(); err != nil {
		return nil, fmt.Errorf("ENI reconciler: %w", err)
	}
	return &Reconciler{
		cfg: cfg, kick: make(chan struct{}, 1), view: newView(cfg.Settle), limits: cfg.Limits, itype: cfg.InstanceType,
		lookAt: map[string]time.Time{}, leaving: map[string]time.Time{}, unsure: map[string]unsureAssign{}, gates: map[gate]*backoff{},
	}, nil
}

// Seed gives the reconciler the last inventory that the cloud confirmed, so
// that a listing that trails it brings nothing back. Call it before Run.
// Nothing is changed at the cloud before the cloud has been observed.
func (r *Reconciler) Seed(inv Inventory) {
	if inv.InstanceID != r.cfg.InstanceID {
		return
	}
	now := r.cfg.Clock.Now()
	r.replied = inv.At
	if r.limits == (cloud.Limits{}) {
		r.limits, r.itype = inv.Limits, inv.InstanceType
	}
	for _, e := range inv.ENIs {
		r.cfg.Subnets.Learn(e.SubnetID, e.Subnet)
		k := newKnown(e.cloudENI(r.cfg))
		r.view.enis[e.ID] = k
		k.replied = inv.At
		for _, t := range k.things() {
			k.added[t] = inv.At
		}
	}
	for _, l := range inv.Leaving {
		k := newKnown(ENI{ID: l.ENI}.cloudENI(r.cfg))
		k.Attachment.Status, k.replied = "detaching", l.Since
		r.view.enis[l.ENI] = k
		r.lookAt[l.ENI] = now
	}
	for _, rel := range inv.Releasing {
		k := r.view.enis[rel.ENI]
		if k == nil {
			continue
		}
		if _, has := k.added[rel.Prefix]; has { // until a listing settles it, however long ago that was
			k.releasing[rel.Prefix] = rel.Since
			delete(k.added, rel.Prefix)
		} else {
			k.removed[rel.Prefix] = rel.Since
		}
	}
}

// cloudENI is a stored ENI as the cloud would describe it.
func (e ENI) cloudENI(c Config) cloud.ENI {
	out := cloud.ENI{
		ID: e.ID, MAC: []byte(e.MAC), Type: cloud.InterfaceOrdinary, Status: "in-use", SubnetID: e.SubnetID, Primary: e.PrimaryIPv4,
		Addresses: e.Addresses, Prefixes: e.Prefixes, IPv6: e.IPv6, IPv6Prefixes: e.IPv6Prefixes,
		Attachment: &cloud.Attachment{InstanceID: c.InstanceID, DeviceIndex: e.DeviceIndex, Status: "attached"},
	}
	if !e.Primary {
		out.Tags = map[string]string{TagCluster: c.Cluster, TagOwner: Owner, TagInstanceID: c.InstanceID}
	}
	return out
}

// Kick says that something may have to be done now: pods wait or went, a
// withdrawal was confirmed. It never blocks.
func (r *Reconciler) Kick() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// Run reconciles whenever kicked and whenever something is due, until ctx ends.
func (r *Reconciler) Run(ctx context.Context) error {
	for {
		due := r.cfg.Clock.After(r.Reconcile(ctx))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-due:
		case <-r.kick:
			// A burst of pods arrives within moments: ask for all at once.
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-r.cfg.Clock.After(r.cfg.BurstWindow):
			}
			select {
			case <-r.kick:
			default:
			}
		}
	}
}

// maxSteps bounds one pass; what is left continues with the next.
const maxSteps = 256

// Reconcile does everything that can be done now and tells when to come back
// at the latest.
func (r *Reconciler) Reconcile(ctx context.Context) time.Duration {
	start := r.cfg.Clock.Now()
	for range maxSteps {
		if ctx.Err() != nil || !r.next(ctx) {
			break
		}
	}
	r.report()
	now := r.cfg.Clock.Now()
	r.cfg.Observer.Reconciled(now.Sub(start))
	return r.wake(now)
}

// next does the one most urgent thing that is due, and tells whether there may
// be more. Observing comes before planning: a plan on a guess is a wrong plan.
func (r *Reconciler) next(ctx context.Context) bool {
	now := r.cfg.Clock.Now()
	if p := r.pending; p != nil && !r.closed(gateOf(p.Kind), now) {
		r.pending = nil
		if !r.renew(ctx, p, now) {
			return true
		}
		return r.try(ctx, p)
	}
	if !r.observeAt.After(now) {
		if r.closed(gateObserve, now) {
			return false
		}
		return r.observe(ctx)
	}
	if r.confirmed.IsZero() {
		return false
	}
	if id, ok := r.lookDue(now); ok {
		if r.closed(gateObserve, now) {
			return false
		}
		return r.look(ctx, id)
	}
	if !r.resumed {
		return r.resume(ctx)
	}
	if p := r.plan(ctx, now); p != nil {
		return r.try(ctx, p)
	}
	if r.collectDue(now) {
		return r.collect(ctx)
	}
	return false
}

// plan picks the first step of the current plan whose way is open.
func (r *Reconciler) plan(ctx context.Context, now time.Time) *step {
	r.restoreSettled()
	s := r.state(now)
	s.Release = r.excess.allow(Excess(r.limits, r.cfg.Policy, s), now, r.cfg.ShrinkDelay)
	actions := Plan(r.limits, r.cfg.Policy, s)
	r.starved = starved(r.limits, r.cfg.Policy, s)
	r.healUnwanted(actions, now)
	for _, a := range actions {
		g := gateOf(a.Kind)
		if r.closed(g, now) || g == gateGrow && r.growthWaits() {
			continue
		}
		if g == gateGrow && r.subnetsStale(now) && !r.closed(gateSubnets, now) {
			return &step{Action: Action{Kind: FindSubnets}}
		}
		if p := r.prepare(ctx, a, now); p != nil {
			return p
		}
	}
	// A full subnet is asked about again, however little the plan can do.
	if r.starved && r.subnetsStale(now) && !r.closed(gateSubnets, now) {
		return &step{Action: Action{Kind: FindSubnets}}
	}
	return nil
}

// growthWaits tells whether an unfinished step must be resolved before more
// addresses are asked for.
func (r *Reconciler) growthWaits() bool { return len(r.unsure) > 0 || r.pending != nil }

// state is the view as a plan sees it.
func (r *Reconciler) state(now time.Time) State {
	u := r.cfg.Node.Usage()
	s := State{Waiting: u.Waiting, Subnets: r.cfg.Subnets.States(now, r.forNew), NoMoreENIs: r.refusedAt.After(now)}
	for _, k := range r.view.list() {
		if k.Attachment != nil && k.Attachment.NetworkCard != 0 {
			continue // neither its device index nor the limits are those of the first card
		}
		s.ENIs = append(s.ENIs, r.eniState(k, u.ENIs[k.ID]))
	}
	return s
}

func (r *Reconciler) eniState(k *known, u ENIUsage) ENIState {
	e := ENIState{
		ID: k.ID, Subnet: k.SubnetID, Index: k.index(), Phase: k.phase(),
		Primary: primary(k.ENI), Ours: ours(k.ENI, r.cfg.Cluster),
		Addresses: len(k.Addresses), Prefixes: len(k.Prefixes), Withdrawn: len(k.releasing),
		Used: u.Used, Cooling: u.Cooling, FreeSingles: u.FreeSingles, FreePrefixes: u.FreePrefixes,
	}
	if _, ok := r.leaving[k.ID]; ok && e.Phase == Attached {
		e.Phase = Detaching // its detachment may be under way: no supply, and not asked for twice
	}
	for p := range k.releasing {
		if p.IsSingleIP() {
			e.Addresses--
		} else {
			e.Prefixes--
		}
	}
	if k.Attachment != nil && k.Attachment.ID != "" {
		e.WrongDeletion = k.Attachment.DeleteOnTermination == r.cfg.KeepENIs
		e.WrongTags = k.Tags[TagInstanceID] != r.cfg.InstanceID
	}
	return e
}

// inventory is the view as a Node sees it.
func (r *Reconciler) inventory() Inventory {
	now := r.cfg.Clock.Now()
	inv := Inventory{InstanceID: r.cfg.InstanceID, InstanceType: r.itype, Limits: r.limits, At: r.replied}
	for _, k := range r.view.list() {
		since, leaving := r.leaving[k.ID]
		if k.phase() == Detaching {
			since, leaving = k.replied, true
		}
		if leaving && r.view.fresh(since, now) {
			inv.Leaving = append(inv.Leaving, Leave{ENI: k.ID, Since: since})
		}
		if leaving || !ours(k.ENI, r.cfg.Cluster) || k.phase() != Attached {
			continue
		}
		e := ENI{
			ID: k.ID, MAC: MAC(k.MAC), DeviceIndex: k.index(), Primary: primary(k.ENI),
			Serves: k.index() >= r.cfg.Policy.FirstInterfaceIndex, SubnetID: k.SubnetID, PrimaryIPv4: k.ENI.Primary,
			Addresses: k.Addresses, Prefixes: k.Prefixes, IPv6: k.IPv6, IPv6Prefixes: k.IPv6Prefixes,
		}
		e.Subnet, _ = r.cfg.Subnets.CIDR(k.SubnetID)
		inv.ENIs = append(inv.ENIs, e)
		for _, m := range []map[netip.Prefix]time.Time{k.releasing, k.removed} {
			for _, p := range sortedKeys(m) {
				inv.Releasing = append(inv.Releasing, Release{Prefix: p, ENI: k.ID, Since: m[p]})
			}
		}
	}
	return inv
}

// publish gives the node what is known now.
func (r *Reconciler) publish(ctx context.Context) error {
	if err := r.cfg.Node.Publish(ctx, r.inventory()); err != nil {
		r.cfg.Logger.Error("inventory not recorded", "error", err)
		return fmt.Errorf("record the inventory: %w", err)
	}
	return nil
}

// restoreSettled gives withdrawn addresses back to the node whose release
// failed, once a listing that cannot be older than the call still has them.
func (r *Reconciler) restoreSettled() {
	for _, k := range r.view.enis {
		var addrs []netip.Addr
		var prefixes []netip.Prefix
		for p, since := range k.releasing {
			if r.confirmed.Sub(since) < r.cfg.Settle {
				continue
			}
			delete(k.releasing, p)
			if p.IsSingleIP() {
				addrs = append(addrs, p.Addr())
			} else {
				prefixes = append(prefixes, p)
			}
		}
		if len(addrs)+len(prefixes) > 0 {
			r.cfg.Node.RestoreAddresses(addrs, prefixes)
		}
	}
}

// wake tells how long nothing needs to be done.
func (r *Reconciler) wake(now time.Time) time.Duration {
	at := r.observeAt
	sooner := func(t time.Time) {
		if t.After(now) && t.Before(at) {
			at = t
		}
	}
	for _, t := range r.lookAt {
		sooner(t)
	}
	for _, b := range r.gates {
		sooner(b.until)
	}
	for _, u := range r.unsure {
		sooner(u.until)
	}
	sooner(r.excess.due(r.cfg.ShrinkDelay))
	sooner(r.collectAt)
	sooner(r.refusedAt)
	sooner(r.retryAt)
	if r.starved {
		sooner(r.subnetsAt.Add(subnetsAge))
	}
	if b := r.gates[gateObserve]; !r.observeAt.After(now) && b != nil {
		return max(0, b.until.Sub(now))
	}
	return max(0, at.Sub(now))
}
