package eni

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/cloud"
)

// unsureAssign is an assignment whose reply was lost: it may have taken effect,
// and a listing may trail that by Lag.
type unsureAssign struct {
	before map[netip.Prefix]bool
	until  time.Time
}

// observe lists everything of this node: the instance's ENIs, and detached
// ones of ours. EC2 is the authority; the metadata service is never asked.
func (r *Reconciler) observe(ctx context.Context) bool {
	start := r.cfg.Clock.Now()
	call, cancel := context.WithTimeout(ctx, r.cfg.CallTimeout)
	l, err := r.lister.List(call, r.cfg.InstanceID, r.astrayAt)
	cancel()
	if err == nil {
		err = r.take(ctx, l)
	}
	r.told(Action{Kind: Observe}, err, start)
	if err != nil {
		r.failObserve(err)
	}
	return true
}

// Observed takes a listing that was made for many nodes, in the goroutine that
// reconciles. One that is older than what is known is ignored.
func (r *Reconciler) Observed(ctx context.Context, l Listing) {
	if r.end.Load() || l.At.Before(r.confirmed) || l.At.Before(r.astrayAt) || r.quietUntil.After(l.At) {
		return
	}
	if err := r.take(ctx, l); err != nil {
		r.failObserve(err)
	}
}

// take draws the conclusions from a listing.
func (r *Reconciler) take(ctx context.Context, l Listing) error {
	if err := r.present(ctx, l); err != nil || r.vanished {
		return err
	}
	if r.silent {
		r.view.believe()
	}
	r.view.merge(l.ENIs, l.At, func(k *known) bool { return l.Whole || k.Attachment != nil })
	r.zone, r.vpc = cmp.Or(l.Zone, r.zone), cmp.Or(l.VPCID, r.vpc)
	r.itype = cmp.Or(l.InstanceType, r.itype)
	if r.subnetUnknown() && !r.closed(gateSubnets, r.cfg.Clock.Now()) {
		if err := r.findSubnets(ctx); err != nil {
			return err
		}
	}
	if r.silent {
		r.silent, r.quietUntil = false, time.Time{}
	}
	r.heal(gateObserve)
	if r.limitsDue(l.At) && r.confirmed.IsZero() {
		r.learn(ctx)
	}
	first := r.confirmed.IsZero()
	r.confirmed, r.astray = l.At, false
	r.observeAt = r.cfg.Clock.Now().Add(r.cfg.jitter(r.cfg.ListingInterval))
	if first && !r.cfg.NoCollection {
		r.collectAt = l.At.Add(time.Duration(r.cfg.Rand.Int64N(int64(r.cfg.CollectInterval))))
	}
	for _, k := range r.view.list() {
		if at, ok := r.lookAt[k.ID]; ok && !at.After(l.At) {
			delete(r.lookAt, k.ID)
		}
		r.settleLook(k.ID, l.At)
	}
	_ = r.publish(ctx)
	return nil
}

// present tells whether a listing has the instance at all. A listing may trail
// a new instance, so one without it says nothing; after two the instance is
// asked for.
func (r *Reconciler) present(ctx context.Context, l Listing) error {
	if !r.passive {
		return nil
	}
	if slices.ContainsFunc(l.ENIs, primary) {
		if r.missing > 0 || r.vanished {
			r.missing, r.vanished = 0, false
			r.heal(gateInstance)
		}
		return nil
	}
	if r.missing++; r.vanished {
		return nil
	}
	r.goAstray(r.cfg.Clock.Now())
	if r.missing < 2 {
		return &cloud.Error{Class: cloud.Gone, Op: "DescribeNetworkInterfaces", Message: fmt.Sprintf("instance %s has no ENI yet", r.cfg.InstanceID)}
	}
	r.ask(ctx)
	if b := r.gates[gateInstance]; b != nil {
		return b.err
	}
	return &cloud.Error{Class: cloud.Gone, Op: "DescribeNetworkInterfaces", Message: fmt.Sprintf("instance %s exists and has no ENI", r.cfg.InstanceID)}
}

// ask finds out whether the instance is there and runs. Nothing is changed
// while it does not.
func (r *Reconciler) ask(ctx context.Context) bool {
	start := r.cfg.Clock.Now()
	call, cancel := context.WithTimeout(ctx, r.cfg.CallTimeout)
	in, err := r.lister.Instance(call, r.cfg.InstanceID)
	cancel()
	gone := cloud.ClassOf(err) == cloud.Gone || err == nil && (in.State == "terminated" || in.State == "shutting-down")
	halted := err == nil && (in.State == "stopped" || in.State == "stopping")
	if gone {
		r.told(Action{Kind: FindInstance}, nil, start)
	} else {
		r.told(Action{Kind: FindInstance}, err, start)
	}
	switch {
	case gone:
		r.vanished = true
		r.fail(gateInstance, FindInstance, &cloud.Error{Class: cloud.Gone, Op: "DescribeInstances",
			Message: fmt.Sprintf("instance %s does not exist, or is terminated", r.cfg.InstanceID)}, start, 0)
	case err != nil:
		r.fail(gateInstance, FindInstance, fmt.Errorf("describe instance %s: %w", r.cfg.InstanceID, err), start, r.waitAfter(gateInstance, cloud.ClassOf(err)))
		return true
	case halted:
		r.fail(gateInstance, FindInstance, &cloud.Error{Class: cloud.Conflict, Op: "DescribeInstances",
			Message: fmt.Sprintf("instance %s is stopped: nothing is changed until it runs", r.cfg.InstanceID)}, start, r.cfg.jitter(r.cfg.SlowRetry))
	default:
		r.heal(gateInstance)
	}
	r.uncertain, r.stopped = false, halted
	return true
}

// limitsKnown tells whether what the instance type allows is known.
func (r *Reconciler) limitsKnown() bool {
	return r.cfg.Limits != cloud.Limits{} || r.limitsOf != "" && r.limitsOf == r.itype
}

func (r *Reconciler) limitsDue(now time.Time) bool {
	return !r.limitsKnown() && !r.closed(gateLimits, now)
}

// learn asks what the instance type allows, and for the type if nobody told.
func (r *Reconciler) learn(ctx context.Context) bool {
	start := r.cfg.Clock.Now()
	call, cancel := context.WithTimeout(cloud.WithPriority(ctx, cloud.Begun), r.cfg.CallTimeout)
	defer cancel()
	itype := r.itype
	var err error
	if itype == "" {
		var in cloud.Instance
		if in, err = r.lister.Instance(call, r.cfg.InstanceID); err != nil {
			err = fmt.Errorf("instance type of %s: %w", r.cfg.InstanceID, err)
		}
		itype = in.Type
	}
	var l cloud.Limits
	if err == nil {
		if l, err = r.cfg.Cloud.Limits(call, itype); err != nil {
			err = fmt.Errorf("limits of instance type %q: %w", itype, err)
		}
	}
	now := r.cfg.Clock.Now()
	r.told(Action{Kind: FindLimits}, err, start)
	if err != nil {
		r.fail(gateLimits, FindLimits, err, now, r.waitAfter(gateLimits, cloud.ClassOf(err)))
		return true
	}
	r.itype, r.limitsOf, r.limits = itype, itype, l
	r.heal(gateLimits)
	return true
}

// lookDue finds an ENI that is to be described singly now, the longest due
// first: any, or one whose doubt keeps growth waiting.
func (r *Reconciler) lookDue(now time.Time, urgent bool) (string, bool) {
	var best string
	for id, at := range r.lookAt {
		if _, doubt := r.unsure[id]; urgent && !doubt {
			continue
		}
		if !at.After(now) && (best == "" || at.Before(r.lookAt[best]) || at.Equal(r.lookAt[best]) && id < best) {
			best = id
		}
	}
	return best, best != ""
}

// look describes one ENI: to see a detachment end, or what a lost reply did.
func (r *Reconciler) look(ctx context.Context, id string) bool {
	start := r.cfg.Clock.Now()
	call := ctx
	if _, doubt := r.unsure[id]; doubt {
		call = cloud.WithPriority(ctx, cloud.Begun)
	}
	call, cancel := context.WithTimeout(call, r.cfg.CallTimeout)
	defer cancel()
	list, at, err := r.lister.Look(call, id)
	r.told(Action{Kind: Observe, ENI: id}, err, start)
	if err != nil {
		r.failObserve(err)
		return true
	}
	r.heal(gateObserve)
	delete(r.lookAt, id)
	r.view.merge(list, at, func(k *known) bool { return k.ID == id })
	r.settleLook(id, at)
	_ = r.publish(ctx)
	return true
}

// settleLook draws the conclusions for one ENI from a listing that began at start.
func (r *Reconciler) settleLook(id string, start time.Time) {
	k, known := r.view.enis[id]
	if u, ok := r.unsure[id]; ok {
		effect := known && slices.ContainsFunc(k.things(), func(p netip.Prefix) bool { return !u.before[p] })
		if effect || !known || !start.Before(u.until) {
			delete(r.unsure, id)
		} else {
			r.lookAt[id] = start.Add(time.Second)
		}
	}
	if known && k.phase() == Detaching {
		r.lookAt[id] = start.Add(k.detachPoll(start))
	}
	if since, ok := r.leaving[id]; ok && (!known || k.phase() != Attached || start.Sub(since) >= r.cfg.Lag) {
		if known {
			k.unsure = false
		}
		delete(r.leaving, id) // if it is still attached, publishing it gives it back
	}
}

// detachPoll is how long after a look at a detaching ENI the next follows:
// detaching takes seconds, but may hang for hours.
func (k *known) detachPoll(now time.Time) time.Duration {
	if k.replied.IsZero() { // someone else's doing
		return 10 * time.Second
	}
	return min(time.Minute, max(2*time.Second, now.Sub(k.replied)/4))
}

const subnetsAge = time.Minute // older free counts are asked for before growing

// blurredAge is subnetsAge for a node that is short of addresses while counts
// may be too low, as calls were under way when they were told.
const blurredAge = 10 * time.Second

// subnetsSince is the moment as of which free counts do at now.
func (r *Reconciler) subnetsSince(now time.Time) time.Time {
	age := subnetsAge
	if r.passive && r.starved && r.cfg.Subnets.Blurred() {
		age = blurredAge
	}
	since := now.Add(1 - age)
	if r.recount.After(since) {
		return r.recount
	}
	return since
}

func (r *Reconciler) subnetsStale(now time.Time) bool {
	return r.subnetsAt.Before(r.subnetsSince(now))
}

func (r *Reconciler) subnetUnknown() bool {
	for _, k := range r.view.enis {
		if _, ok := r.cfg.Subnets.CIDR(k.SubnetID); !ok && ours(k.ENI, r.cfg.Cluster) {
			return true
		}
	}
	return false
}

// findSubnets describes the subnets of the node's ENIs and those for new ones.
func (r *Reconciler) findSubnets(ctx context.Context) error {
	now := r.cfg.Clock.Now()
	q := SubnetQuery{IDs: slices.Clone(r.cfg.SubnetIDs), Tags: r.cfg.SubnetTags, Any: r.anySubnet(), Since: r.subnetsSince(now)}
	q.VPCID, q.Zone = r.place()
	for _, k := range r.view.list() {
		if k.SubnetID != "" && !slices.Contains(q.IDs, k.SubnetID) {
			q.IDs = append(q.IDs, k.SubnetID)
		}
	}
	at, err := r.lister.Subnets(ctx, q)
	if err == nil {
		r.subnetsAt = at
	}
	return err
}

// place is the VPC and zone where subnets and security groups are looked for.
func (r *Reconciler) place() (vpc, zone string) {
	vpc, zone = cmp.Or(r.cfg.VPCID, r.vpc), cmp.Or(r.cfg.Zone, r.zone)
	if k, ok := r.view.primary(); ok {
		vpc, zone = cmp.Or(vpc, k.VPCID), cmp.Or(zone, k.Zone)
	}
	return vpc, zone
}

// anySubnet tells whether every subnet of VPC and zone may have new ENIs.
func (r *Reconciler) anySubnet() bool {
	return r.cfg.AnySubnet && len(r.cfg.SubnetIDs) == 0 && len(r.cfg.SubnetTags) == 0
}

// relevant are the subnets of the node's ENIs.
func (r *Reconciler) relevant() map[string]bool {
	m := make(map[string]bool, len(r.view.enis))
	for _, k := range r.view.enis {
		m[k.SubnetID] = true
	}
	return m
}

// forNew tells in which subnets new ENIs may be made: those configured by
// ID or tags, in the instance's zone; without either, the primary's or any.
func (r *Reconciler) forNew() choice {
	vpc, zone := r.place()
	home := ""
	if k, ok := r.view.primary(); ok {
		home = k.SubnetID
	}
	return func(s cloud.Subnet) bool {
		if s.Zone != "" && zone != "" && s.Zone != zone || s.VPCID != "" && vpc != "" && s.VPCID != vpc {
			return false
		}
		switch {
		case len(r.cfg.SubnetIDs) > 0:
			return slices.Contains(r.cfg.SubnetIDs, s.ID)
		case len(r.cfg.SubnetTags) > 0:
			return selects(cloud.SubnetFilter{Tags: r.cfg.SubnetTags}, s)
		case r.cfg.AnySubnet:
			return s.VPCID != "" && s.Zone != ""
		default:
			return s.ID == home
		}
	}
}

// VPC is the VPC of the node, empty while it is not known. It is called from
// the goroutine that reconciles.
func (r *Reconciler) VPC() string {
	vpc, _ := r.place()
	return vpc
}
