package eni

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/mac"
)

// Seed gives the reconciler the last inventory that the cloud confirmed, so
// that a listing that trails it brings nothing back that was on its way out.
// Call it before Run.
// Nothing is changed at the cloud before the cloud has been observed.
func (r *Reconciler) Seed(inv Inventory) {
	if inv.InstanceID != r.cfg.InstanceID {
		return
	}
	now := r.cfg.Clock.Now()
	// The wall clock may have been set back since: a reply must not outrank
	// listings for longer than it would have.
	past := func(t time.Time) time.Time {
		if t.After(now) {
			return now
		}
		return t
	}
	inv.At = past(inv.At)
	r.confidence.replied = inv.At
	// An instance may have been given another type since.
	if in := &r.instance; in.limits == (cloud.Limits{}) && (!in.typeKnown || inv.InstanceType == in.typ) {
		in.limits, in.typ = inv.Limits, inv.InstanceType
	}
	for _, e := range inv.ENIs {
		native := !e.PrimaryIPv4.IsValid() && len(e.SubnetIPv6) > 0
		r.cfg.Shared.Subnets.Learn(cloud.Subnet{ID: e.SubnetID, CIDR: e.Subnet, IPv6: e.SubnetIPv6, IPv6Native: native})
		k := newKnown(e.facts(r.cfg.InstanceID))
		r.view.enis[e.ID] = k
		// While this program was away others may have taken addresses off: no
		// listing is corrected by what the file has, but one that may trail the
		// last reply is followed by another.
		if visible := inv.At.Add(r.cfg.Lag); now.Before(visible) {
			k.replied = visible.Add(-r.cfg.Settle)
			r.lookups.at[e.ID] = visible
		}
	}
	for _, l := range inv.Leaving {
		if l.Attached && r.process.sharesNode {
			continue // it is Committed
		}
		k := newKnown(ENI{ID: l.ENI, DeviceIndex: l.DeviceIndex}.facts(r.cfg.InstanceID))
		k.Attachment.Status, k.replied = "detaching", past(l.Since)
		r.view.enis[l.ENI] = k
		r.lookups.at[l.ENI] = now
	}
	for _, rel := range inv.Releasing {
		k := r.view.enis[rel.ENI]
		if k == nil {
			continue
		}
		if slices.Contains(k.held, rel.Prefix) { // until a listing decides it, however long ago that was
			k.releasing[rel.Prefix] = past(rel.Since)
		} else {
			k.removed[rel.Prefix] = past(rel.Since)
		}
	}
}

// inventory is the view as a Node sees it.
func (r *Reconciler) inventory() Inventory {
	now := r.cfg.Clock.Now()
	inv := Inventory{InstanceID: r.cfg.InstanceID, InstanceType: r.instance.typ, Families: r.cfg.Policy.Families, Limits: r.instance.limits, At: r.confidence.replied}
	for _, k := range r.view.list() {
		if k.trunk {
			continue
		}
		since, leaving := r.view.detaching[k.ID]
		if k.phase() == plan.Detaching {
			since, leaving = k.replied, true
		}
		attached := leaving && k.phase() == plan.Attached
		if leaving && (r.view.fresh(since, now) || attached && r.process.sharesNode) {
			inv.Leaving = append(inv.Leaving, Leave{ENI: k.ID, DeviceIndex: k.index(), Since: since, Attached: attached})
		}
		if leaving || !r.ours(k) || k.phase() != plan.Attached {
			continue
		}
		e := ENI{
			ID: k.ID, MAC: mac.Addr(k.MAC), DeviceIndex: k.index(), Primary: primary(k.Attachment),
			Serves: k.index() >= r.cfg.Policy.FirstInterfaceIndex, SubnetID: k.SubnetID, PrimaryIPv4: k.Primary, Groups: k.Groups,
		}
		e.Addresses, e.Prefixes, e.IPv6, e.IPv6Prefixes = split(k.held)
		if r.cfg.primaryServes() && !e.Primary && e.Serves && k.Primary.IsValid() {
			e.Addresses = append([]netip.Addr{k.Primary}, e.Addresses...)
		}
		subnet := r.cfg.Shared.Subnets.blocksWith(k.SubnetID, k.Primary)
		e.Subnet, e.SubnetIPv6 = subnet.CIDR, subnet.IPv6
		inv.ENIs = append(inv.ENIs, e)
		for _, m := range []map[netip.Prefix]time.Time{k.releasing, k.removed} {
			for _, p := range sortedKeys(m) {
				inv.Releasing = append(inv.Releasing, Release{Prefix: p, ENI: k.ID, Since: m[p]})
			}
		}
	}
	return inv
}

// publish gives the node what is known now. A failure is logged. Steps that are done
// whether or not it is recorded ignore it: the next change or observation records it.
func (r *Reconciler) publish(ctx context.Context) error {
	if r.Ended() {
		return errors.New("record the inventory: the node was taken away")
	}
	if err := r.confidence.mayPublish(); err != nil {
		return fmt.Errorf("record the inventory: %w", err)
	}
	if err := r.cfg.Node.Publish(ctx, r.inventory()); err != nil {
		if ctx.Err() == nil { // else it is the end of the program: the next one records it
			r.cfg.Logger.Error("inventory not recorded", "error", err)
		}
		return fmt.Errorf("record the inventory: %w", err)
	}
	return nil
}

// restoreOverdue gives withdrawn addresses back to the node whose release
// failed, once a listing that cannot be older than the call still has them.
func (r *Reconciler) restoreOverdue() {
	for _, k := range r.view.enis {
		var back []netip.Prefix
		for p, since := range k.releasing {
			if r.confidence.confirmed.Sub(since) < r.cfg.Settle {
				continue
			}
			delete(k.releasing, p)
			back = append(back, p)
		}
		if len(back) > 0 {
			r.cfg.Node.RestoreWithdrawn(back)
		}
	}
}
