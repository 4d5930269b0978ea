package eni

import (
	"slices"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
)

// Seed gives the reconciler the last inventory that the cloud confirmed, so
// that a listing that trails it does not bring back what was about to leave.
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
	r.view.freshness.replied = inv.At
	r.instance.seed(inv.InstanceType, inv.Limits)
	for _, e := range inv.ENIs {
		native := !e.PrimaryIPv4.IsValid() && len(e.SubnetIPv6) > 0
		r.cfg.Shared.Catalog.Subnets.Learn(cloud.Subnet{ID: e.SubnetID, CIDR: e.Subnet, IPv6: e.SubnetIPv6, IPv6Native: native})
		k := newKnown(e.facts(r.cfg.InstanceID))
		r.view.enis[e.ID] = k
		// While this program was away others may have taken addresses off: no
		// listing is corrected by what the file has, but one that may trail the
		// last reply is followed by another.
		if visible := inv.At.Add(r.cfg.Lag); now.Before(visible) {
			k.replied = visible.Add(-r.cfg.Settle)
			r.view.lookups.schedule(e.ID, visible)
		}
	}
	for _, l := range inv.Leaving {
		if l.Attached && r.cfg.process.sharesNode {
			continue // Fleet.Committed has it
		}
		k := newKnown(ENI{ID: l.ENI, DeviceIndex: l.DeviceIndex}.facts(r.cfg.InstanceID))
		k.Attachment.Status, k.replied = "detaching", past(l.Since)
		r.view.enis[l.ENI] = k
		r.view.lookups.schedule(l.ENI, now)
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
