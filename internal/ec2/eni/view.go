package eni

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/placement"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/retry"
)

// view is what is known of one node's ENIs: the last listing, corrected by the replies of calls since.
// Listings may trail the truth (EC2 Developer Guide, "Eventual consistency"), so what a reply said
// outranks them for a while. It belongs to the goroutine that reconciles.
type view struct {
	settle    time.Duration // how long a reply outranks a listing
	enis      map[string]*known
	deleted   map[string]time.Time // ENIs that a reply said were deleted
	detaching map[string]time.Time // ENIs withdrawn from the node, the detachment not confirmed

	freshness freshness // whether plans may be made on it
	lookups   lookups   // what is to be described next

	// contradictions are what listings say that cannot be true, with the ENIs concerned.
	contradictions map[string][]string
	logged         map[string]bool // those that were logged
}

// known is one ENI. Like the view's maps, its fields are written in view.go and disputes.go alone.
type known struct {
	facts
	listed                 bool                       // a listing had it; else it is as a reply or the stored inventory says
	replied                time.Time                  // when a reply last changed its attachment, or created it
	refusals               int                        // attachments that EC2 refused because of this ENI
	attachReplyLost        time.Time                  // when a reply to attaching it was last lost
	attachUnresolved       bool                       // the reply of an attachment or detachment was lost
	added                  map[netip.Prefix]time.Time // given by a reply; a listing without them is old
	removed                map[netip.Prefix]time.Time // taken by a reply; a listing with them is old
	groupsSet              time.Time                  // when a reply last changed its security groups
	releasing              map[netip.Prefix]time.Time // withdrawn from pods, and the cloud is or will be asked to take them
	disputed               cloud.Amount               // addresses and prefixes listed for it that another may have
	contradiction          string                     // what the last listing said of it that cannot be true
	deleteOnTerminationDue time.Time                  // since when DeleteOnTermination is wrong; zero: no call was made for it
	ambiguous              bool                       // listed with the MAC, primary address or device index of another ENI: left alone
}

func newView(settle, lag time.Duration) *view {
	return &view{
		settle: settle, enis: map[string]*known{}, deleted: map[string]time.Time{}, detaching: map[string]time.Time{},
		lookups: newLookups(lag), freshness: freshness{lag: lag, stale: true}, contradictions: map[string][]string{}, logged: map[string]bool{},
	}
}

func newKnown(f facts) *known {
	return &known{facts: f, added: map[netip.Prefix]time.Time{}, removed: map[netip.Prefix]time.Time{}, releasing: map[netip.Prefix]time.Time{}}
}

// ours reports whether an ENI may be changed and used.
func (k *known) ours() bool { return !k.ambiguous && k.facts.ours() }

// due returns when there is something to observe; zero: never.
func (v *view) due(now time.Time) time.Time {
	return retry.Earliest(now, v.freshness.due(now), v.lookups.due(now))
}

// trustListings has the next listing outrank every reply so far.
func (v *view) trustListings() {
	for _, k := range v.enis {
		clear(k.added)
		k.replied = time.Time{}
	}
}

// fresh reports whether a reply at t still outranks a listing.
func (v *view) fresh(t, now time.Time) bool { return !t.IsZero() && now.Sub(t) < v.settle }

// merge takes a listing. ENIs in scope that it lacks are gone, unless a recent reply named them.
func (v *view) merge(listed []facts, now time.Time, scope func(*known) bool) {
	before := make([]facts, 0, len(v.enis))
	for _, k := range v.list() {
		before = append(before, k.facts)
	}
	seen := map[string]bool{}
	for _, f := range listed {
		seen[f.ID] = true
		if v.fresh(v.deleted[f.ID], now) {
			continue
		}
		if k, ok := v.enis[f.ID]; ok {
			k.merge(f, v, now)
		} else {
			v.enis[f.ID] = newKnown(f)
		}
		v.enis[f.ID].listed = true
	}
	maps.DeleteFunc(v.enis, func(id string, k *known) bool {
		return !seen[id] && scope(k) && !v.fresh(k.replied, now)
	})
	maps.DeleteFunc(v.deleted, func(_ string, t time.Time) bool { return !v.fresh(t, now) })
	v.arbitrate(before)
}

func (k *known) merge(f facts, v *view, now time.Time) {
	for _, m := range []map[netip.Prefix]time.Time{k.added, k.removed} {
		maps.DeleteFunc(m, func(_ netip.Prefix, t time.Time) bool { return !v.fresh(t, now) })
	}
	k.keepForLife(&f)
	if v.fresh(k.replied, now) {
		f.Attachment = k.attached(f.Attachment)
	}
	if v.fresh(k.groupsSet, now) {
		f.Groups = k.Groups
	}
	k.facts = f
	k.correct()
	for p := range k.releasing {
		if !slices.Contains(k.held, p) { // gone; an older listing that still has it must not bring it back
			delete(k.releasing, p)
			k.removed[p] = now
		}
	}
}

// attached returns the attachment, given what a listing says of it: that of a recent reply, except
// where only a later listing can know better.
func (k *known) attached(listed *cloud.Attachment) *cloud.Attachment {
	switch {
	case k.phase() == plan.Detaching && listed == nil: // the detachment is complete
		return nil
	case k.attachUnresolved && phaseOf(listed) != k.phase(): // the call whose reply was lost took effect
		k.attachUnresolved = false
		return listed
	case k.Attachment != nil && k.Attachment.ID == "" && listed != nil: // from a stored inventory, without the ID
		a := *listed
		a.Status = k.Attachment.Status
		return &a
	case samePlace(k.Attachment, listed): // a reply may name another's
		a := *k.Attachment
		a.ID = listed.ID
		return &a
	default:
		return k.Attachment
	}
}

// correct applies the replies since a listing to what the listing says that the ENI holds.
func (k *known) correct() {
	held := without(k.held, func(p netip.Prefix) bool { _, gone := k.removed[p]; return gone })
	k.held = cloud.SortPrefixes(slices.AppendSeq(held, maps.Keys(k.added)))
}

// isReleasing reports whether an address or prefix is being released.
func (k *known) isReleasing(p netip.Prefix) bool { _, ok := k.releasing[p]; return ok }

// kept returns what the ENI holds and is not giving back.
func (k *known) kept() []netip.Prefix { return without(k.held, k.isReleasing) }

// assigned records what a reply assigned.
func (k *known) assigned(given []netip.Prefix, now time.Time) {
	for _, p := range given {
		k.added[p] = now
		delete(k.removed, p)
		delete(k.releasing, p)
	}
	k.correct()
}

// unassigned records what a reply unassigned.
func (k *known) unassigned(taken []netip.Prefix, now time.Time) {
	for _, p := range taken {
		k.removed[p] = now
		delete(k.added, p)
		delete(k.releasing, p)
	}
	k.correct()
}

// releaseBegan records that addresses and prefixes are withdrawn from pods, and the cloud will be asked
// to take them.
func (k *known) releaseBegan(list []netip.Prefix, now time.Time) {
	k.releaseRecorded(list, now)
	for _, p := range list {
		delete(k.added, p)
	}
}

// releaseRecorded has a release count as of now, such as one that another process began, or whose call
// may have taken effect until now.
func (k *known) releaseRecorded(list []netip.Prefix, now time.Time) {
	for _, p := range list {
		k.releasing[p] = now
	}
}

// releaseRepeated records that the cloud is asked once more. It is false if a listing showed since that
// something is gone.
func (k *known) releaseRepeated(list []netip.Prefix, now time.Time) bool {
	for _, p := range list {
		if !k.isReleasing(p) {
			return false
		}
		k.releasing[p] = now
	}
	return true
}

// releaseCancelled records that the cloud is not asked to take addresses and prefixes.
func (k *known) releaseCancelled(list []netip.Prefix) {
	for _, p := range list {
		delete(k.releasing, p)
	}
}

// regrouped records that a reply said which security groups the ENI has.
func (k *known) regrouped(groups []string, now time.Time) {
	k.Groups, k.groupsSet = slices.Clone(groups), now
}

// tagged records that a reply said that the ENI has the tag of an instance.
func (k *known) tagged(instance string) { k.owner.instanceTag = instance }

// attachLost records that the reply to attaching the ENI was lost.
func (k *known) attachLost(now time.Time) { k.attachReplyLost = now }

// attachRefused counts an attachment that was refused because of the ENI.
func (k *known) attachRefused() { k.refusals++ }

// deletionDue records that DeleteOnTermination is to be set, and returns since when it is.
func (k *known) deletionDue(now time.Time) (since time.Time) {
	if k.deleteOnTerminationDue.IsZero() {
		k.deleteOnTerminationDue = now
	}
	return k.deleteOnTerminationDue
}

// deletionNotDue records that DeleteOnTermination need not be set.
func (k *known) deletionNotDue() { k.deleteOnTerminationDue = time.Time{} }

// deletionSet records that a reply said that DeleteOnTermination is set.
func (k *known) deletionSet(on bool, now time.Time) {
	a := *k.Attachment
	a.DeleteOnTermination = on
	k.Attachment, k.replied = &a, now
	k.deletionNotDue()
}

// list returns the ENIs by device index and ID.
func (v *view) list() []*known {
	return slices.SortedFunc(maps.Values(v.enis), func(x, y *known) int {
		return cmp.Or(cmp.Compare(x.index(), y.index()), cmp.Compare(x.ID, y.ID))
	})
}

// primary returns the ENI that came with the instance.
func (v *view) primary() (*known, bool) {
	for _, k := range v.enis {
		if primary(k.Attachment) && !k.ambiguous {
			return k, true
		}
	}
	return nil, false
}

// Primary implements placement.ENIs.
func (v *view) Primary() (placement.ENI, bool) {
	if k, ok := v.primary(); ok {
		return k.placed(), true
	}
	return placement.ENI{}, false
}

// Each implements placement.ENIs.
func (v *view) Each(do func(placement.ENI)) {
	for _, k := range v.list() {
		do(k.placed())
	}
}

// placed returns what the choice of subnets and security groups depends on.
func (k *known) placed() placement.ENI {
	return placement.ENI{
		VPCID: k.VPCID, Zone: k.Zone, SubnetID: k.SubnetID, Groups: k.Groups, Address: k.Primary,
		Created: k.owner.createdAt(), Ours: k.facts.ours(),
	}
}

// created adds an ENI that a reply says was created.
func (v *view) created(f facts, now time.Time) {
	k := newKnown(f)
	k.replied = now
	k.assigned(k.held, now)
	v.enis[k.ID] = k
}

// attached records that a reply said an ENI is attached. DeleteOnTermination is off after an attachment
// by API (EC2 API Reference, NetworkInterfaceAttachment); the next plan sees that and has it set.
func (v *view) attached(k *known, a cloud.Attachment, now time.Time) {
	k.Attachment, k.replied, k.attachUnresolved = &a, now, false
}

// detached records that a reply said an ENI is being detached.
func (v *view) detached(k *known, now time.Time) {
	a := *k.Attachment
	a.Status = "detaching"
	k.Attachment, k.replied, k.attachUnresolved = &a, now, false
	delete(v.detaching, k.ID)
	v.lookups.schedule(k.ID, now.Add(time.Second))
}

// detachBegan records that an ENI is withdrawn from the node, and that the cloud is, or may have been,
// asked to detach it as of now.
func (v *view) detachBegan(id string, now time.Time) { v.detaching[id] = now }

// detachCancelled records that the cloud is not asked to detach an ENI.
func (v *view) detachCancelled(id string) { delete(v.detaching, id) }

// wasDeleted records that a reply said an ENI is deleted.
func (v *view) wasDeleted(id string, now time.Time) { v.deleted[id] = now }

// forget ends all that is known of an ENI that is not attached.
func (v *view) forget(id string) {
	delete(v.enis, id)
	delete(v.detaching, id)
	v.lookups.forget(id)
}

// attachmentUnresolved records that a call to attach or detach an ENI failed in a way that may hide its
// effect.
func (v *view) attachmentUnresolved(id string) {
	if k, ok := v.enis[id]; ok {
		k.attachUnresolved = true
	}
}

// conclude draws the conclusions for one ENI from a listing. Committed says that a detachment that was
// recorded is never undone.
func (v *view) conclude(id string, at time.Time, lag time.Duration, committed bool) {
	k := v.enis[id]
	v.lookups.seen(id, k, at)
	attached := k != nil && k.phase() == plan.Attached
	if since, ok := v.detaching[id]; ok && (!attached || at.Sub(since) >= lag) {
		if k != nil {
			k.attachUnresolved = false
		}
		if !attached || !committed {
			delete(v.detaching, id) // if it is still attached, publishing it restores it to the node
		}
	}
}

// missingLinks has the cloud asked for ENIs whose links went or came, as the node says. A link that is
// gone says more than a reply of long ago.
func (v *view) missingLinks(missing []string, now time.Time) {
	gone, back := v.lookups.links.changed(missing, now)
	for _, id := range slices.Concat(gone, back) {
		if v.enis[id] == nil { // a node may name any ENI, and lookups are shared by many nodes
			continue
		}
		v.lookups.scheduleBy(id, v.lookups.links.flipped(id, now))
	}
	for _, id := range gone {
		if k := v.enis[id]; k != nil && now.Sub(k.replied) >= v.lookups.links.lag {
			k.replied = time.Time{}
		}
	}
}

// returning lists what is being released, and what a recent reply says is gone.
func (k *known) returning() (out []Release) {
	for _, m := range []map[netip.Prefix]time.Time{k.releasing, k.removed} {
		for _, p := range sortedKeys(m) {
			out = append(out, Release{Prefix: p, ENI: k.ID, Since: m[p]})
		}
	}
	return out
}

func sortedKeys(m map[netip.Prefix]time.Time) []netip.Prefix {
	return slices.SortedFunc(maps.Keys(m), netip.Prefix.Compare)
}

// Seed gives the reconciler the last inventory that the cloud confirmed, so that a listing that trails
// it does not bring back what was about to leave. Call it before Run. Nothing is changed at the cloud
// before the cloud has been observed.
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
	r.view.freshness.given(inv.At)
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
