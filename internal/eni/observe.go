package eni

import (
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
	err := r.list(ctx, start)
	r.told(Observe, err, start)
	if err != nil {
		r.failObserve(err)
		return true
	}
	r.heal(gateObserve)
	first := r.confirmed.IsZero()
	r.confirmed, r.astray = start, false
	r.observeAt = r.cfg.Clock.Now().Add(r.cfg.jitter(r.cfg.ListingInterval))
	if first && !r.cfg.NoCollection {
		r.collectAt = start.Add(time.Duration(r.cfg.Rand.Int64N(int64(r.cfg.CollectInterval))))
	}
	for _, k := range r.view.list() {
		if at, ok := r.lookAt[k.ID]; ok && !at.After(start) {
			delete(r.lookAt, k.ID)
		}
		r.settleLook(k.ID, start)
	}
	_ = r.publish(ctx)
	return true
}

func (r *Reconciler) list(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.CallTimeout)
	defer cancel()
	attached, err := r.attached(ctx)
	if err != nil {
		return err
	}
	mine := map[string]string{TagCluster: r.cfg.Cluster, TagInstanceID: r.cfg.InstanceID}
	detached, err := r.cfg.Cloud.ENIs(ctx, cloud.ENIFilter{Status: "available", Tags: mine})
	if err != nil {
		return fmt.Errorf("list detached ENIs of %s: %w", r.cfg.InstanceID, err)
	}
	r.view.merge(append(attached, detached...), now, func(*known) bool { return true })
	if r.subnetUnknown() {
		if err := r.findSubnets(ctx); err != nil {
			return err
		}
	}
	return nil
}

// attached lists the ENIs on the instance, the first time with the instance
// itself and its limits.
func (r *Reconciler) attached(ctx context.Context) ([]cloud.ENI, error) {
	if !r.confirmed.IsZero() {
		list, err := r.cfg.Cloud.ENIs(ctx, cloud.ENIFilter{InstanceID: r.cfg.InstanceID})
		if err != nil {
			return nil, fmt.Errorf("list the ENIs of %s: %w", r.cfg.InstanceID, err)
		}
		return list, nil
	}
	in, err := r.cfg.Cloud.Instance(ctx, r.cfg.InstanceID)
	if err != nil {
		return nil, fmt.Errorf("describe instance %s: %w", r.cfg.InstanceID, err)
	}
	r.zone, r.vpc, r.itype = in.Zone, in.VPCID, in.Type
	if r.cfg.Limits == (cloud.Limits{}) {
		if r.limits, err = r.cfg.Cloud.Limits(ctx, in.Type); err != nil {
			return nil, fmt.Errorf("limits of instance type %s: %w", in.Type, err)
		}
	}
	return in.ENIs, nil
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
	call, cancel := context.WithTimeout(ctx, r.cfg.CallTimeout)
	defer cancel()
	list, err := r.cfg.Cloud.ENIs(call, cloud.ENIFilter{IDs: []string{id}})
	if cloud.ClassOf(err) == cloud.Gone {
		list, err = nil, nil
	}
	r.told(Observe, err, start)
	if err != nil {
		r.failObserve(fmt.Errorf("describe %s: %w", id, err))
		return true
	}
	r.heal(gateObserve)
	delete(r.lookAt, id)
	r.view.merge(list, start, func(k *known) bool { return k.ID == id })
	r.settleLook(id, start)
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

func (r *Reconciler) subnetsStale(now time.Time) bool {
	return r.subnetsAt.IsZero() || now.Sub(r.subnetsAt) >= subnetsAge
}

func (r *Reconciler) subnetUnknown() bool {
	return slices.ContainsFunc(r.view.list(), func(k *known) bool {
		_, ok := r.cfg.Subnets.CIDR(k.SubnetID)
		return !ok && ours(k.ENI, r.cfg.Cluster)
	})
}

// findSubnets describes the subnets of the node's ENIs and those for new ones.
func (r *Reconciler) findSubnets(ctx context.Context) error {
	now := r.cfg.Clock.Now()
	ids := slices.Clone(r.cfg.SubnetIDs)
	for _, k := range r.view.list() {
		if k.SubnetID != "" && !slices.Contains(ids, k.SubnetID) {
			ids = append(ids, k.SubnetID)
		}
	}
	if err := r.cfg.Subnets.Refresh(ctx, cloud.SubnetFilter{IDs: ids}, now); err != nil {
		return err
	}
	if len(r.cfg.SubnetTags) > 0 {
		f := cloud.SubnetFilter{VPCID: r.vpc, Zone: r.zone, Tags: r.cfg.SubnetTags}
		if err := r.cfg.Subnets.Refresh(ctx, f, now); err != nil {
			return err
		}
	}
	r.subnetsAt = now
	return nil
}

// forNew tells whether new ENIs may be made in a subnet: those configured by
// ID or tags, in the instance's zone; without either, the primary's.
func (r *Reconciler) forNew(s cloud.Subnet) bool {
	if s.Zone != "" && r.zone != "" && s.Zone != r.zone || s.VPCID != "" && r.vpc != "" && s.VPCID != r.vpc {
		return false
	}
	switch {
	case len(r.cfg.SubnetIDs) > 0:
		return slices.Contains(r.cfg.SubnetIDs, s.ID)
	case len(r.cfg.SubnetTags) > 0:
		for k, v := range r.cfg.SubnetTags {
			if s.Tags[k] != v {
				return false
			}
		}
		return true
	default:
		k, ok := r.view.primary()
		return ok && k.SubnetID == s.ID
	}
}
