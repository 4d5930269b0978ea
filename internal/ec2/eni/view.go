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

// view is the known state of one node's ENIs: the last listing, corrected by later replies. Listings may lag (EC2
// Developer Guide, "Eventual consistency"), so replies take precedence over them for a while. It belongs to the
// reconciler's goroutine.
type view struct {
	settle    time.Duration // how long a reply takes precedence over a listing
	enis      map[string]*known
	sorted    []*known             // of the last call of list
	deleted   map[string]time.Time // ENIs deleted according to a reply
	detaching map[string]time.Time // ENIs withdrawn from the node, with an unconfirmed detachment

	freshness freshness // whether the view may be used for plans
	lookups   lookups   // ENIs to be described

	// contradictions describes impossible statements of listings, with the ENIs concerned.
	contradictions map[string][]string
	logged         map[string]bool // contradictions already logged
}

// known is one ENI. Like the view's maps, its fields are written only in view.go and disputes.go.
type known struct {
	facts
	listed                 bool                       // seen in a listing; otherwise known from a reply or the stored inventory
	replied                time.Time                  // last reply that created it or changed its attachment
	refusals               int                        // attachments refused because of this ENI
	attachReplyLost        time.Time                  // last time a reply to attaching it was lost
	attachUnresolved       bool                       // the reply of an attachment or detachment was lost
	added                  map[netip.Prefix]time.Time // assigned by a reply; a listing without them is old
	removed                map[netip.Prefix]time.Time // unassigned by a reply; a listing with them is old
	groupsSet              time.Time                  // last reply that changed its security groups
	releasing              map[netip.Prefix]time.Time // withdrawn from pods, with an Unassign call made or about to be made
	disputed               cloud.Amount               // listed addresses and prefixes that another ENI may have
	contradiction          string                     // impossible statement of the last listing about it
	deleteOnTerminationDue time.Time                  // since when DeleteOnTermination is wrong; zero if no call was made for it
	ambiguous              bool                       // shares its listed MAC, primary address or device index with another ENI: left alone
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

// due returns when there is something to observe; zero means never.
func (v *view) due(now time.Time) time.Time {
	return retry.Earliest(now, v.freshness.due(now), v.lookups.due(now))
}

// trustListings gives the next listing precedence over every reply so far.
func (v *view) trustListings() {
	for _, k := range v.enis {
		clear(k.added)
		k.replied = time.Time{}
	}
}

// fresh reports whether a reply at t still takes precedence over a listing.
func (v *view) fresh(t, now time.Time) bool { return !t.IsZero() && now.Sub(t) < v.settle }

// merge merges a listing. ENIs in scope that it lacks are gone, unless a recent reply named them.
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
		if !slices.Contains(k.held, p) { // gone; an older listing must not restore it
			delete(k.releasing, p)
			k.removed[p] = now
		}
	}
}

// attached returns the attachment, given that in a listing: that of a recent reply, except where only a later listing
// can be right.
func (k *known) attached(listed *cloud.Attachment) *cloud.Attachment {
	switch {
	case k.phase() == plan.Detaching && listed == nil: // the detachment is complete
		return nil
	case k.attachUnresolved && phaseOf(listed) != k.phase(): // the call with a lost reply took effect
		k.attachUnresolved = false
		return listed
	case k.Attachment != nil && k.Attachment.ID == "" && listed != nil: // from a stored inventory, which lacks the ID
		a := *listed
		a.Status = k.Attachment.Status
		return &a
	case samePlace(k.Attachment, listed): // a reply may have named another attachment
		a := *k.Attachment
		a.ID = listed.ID
		return &a
	default:
		return k.Attachment
	}
}

// correct applies the replies since a listing to the listed addresses.
func (k *known) correct() {
	if len(k.added)+len(k.removed) == 0 {
		return
	}
	held := slices.AppendSeq(make([]netip.Prefix, 0, len(k.held)+len(k.added)), maps.Keys(k.added))
	for _, p := range k.held {
		if _, gone := k.removed[p]; !gone {
			held = append(held, p)
		}
	}
	k.held = cloud.SortPrefixes(held)
}

// isReleasing reports whether an address or prefix is being released.
func (k *known) isReleasing(p netip.Prefix) bool { _, ok := k.releasing[p]; return ok }

// kept returns the addresses and prefixes that the ENI holds and is not releasing. The caller must not change the list.
func (k *known) kept() []netip.Prefix {
	if len(k.releasing) == 0 {
		return k.held
	}
	return without(k.held, k.isReleasing)
}

// assigned records an assignment by a reply.
func (k *known) assigned(given []netip.Prefix, now time.Time) {
	for _, p := range given {
		k.added[p] = now
		delete(k.removed, p)
		delete(k.releasing, p)
	}
	k.correct()
}

// unassigned records an unassignment by a reply.
func (k *known) unassigned(taken []netip.Prefix, now time.Time) {
	for _, p := range taken {
		k.removed[p] = now
		delete(k.added, p)
		delete(k.releasing, p)
	}
	k.correct()
}

// releaseBegan records that addresses and prefixes are withdrawn from pods, and that an Unassign call will follow.
func (k *known) releaseBegan(list []netip.Prefix, now time.Time) {
	k.releaseRecorded(list, now)
	for _, p := range list {
		delete(k.added, p)
	}
}

// releaseRecorded dates a release to now, such as one that another process recorded, or whose call may have taken
// effect until now.
func (k *known) releaseRecorded(list []netip.Prefix, now time.Time) {
	for _, p := range list {
		k.releasing[p] = now
	}
}

// releaseRepeated records another call for a release. It is false if a listing since has shown that part of it is
// gone.
func (k *known) releaseRepeated(list []netip.Prefix, now time.Time) bool {
	for _, p := range list {
		if !k.isReleasing(p) {
			return false
		}
		k.releasing[p] = now
	}
	return true
}

// releaseCancelled records that addresses and prefixes will not be released.
func (k *known) releaseCancelled(list []netip.Prefix) {
	for _, p := range list {
		delete(k.releasing, p)
	}
}

// regrouped records the security groups according to a reply.
func (k *known) regrouped(groups []string, now time.Time) {
	k.Groups, k.groupsSet = slices.Clone(groups), now
}

// tagged records the tags according to a reply.
func (k *known) tagged(instance string) { k.owner.instanceTag, k.owner.tagged = instance, true }

// attachLost records that the reply to attaching the ENI was lost.
func (k *known) attachLost(now time.Time) { k.attachReplyLost = now }

// attachRefused counts an attachment refused because of the ENI.
func (k *known) attachRefused() { k.refusals++ }

// deletionDue records that DeleteOnTermination must be set, and returns since when.
func (k *known) deletionDue(now time.Time) (since time.Time) {
	if k.deleteOnTerminationDue.IsZero() {
		k.deleteOnTerminationDue = now
	}
	return k.deleteOnTerminationDue
}

// deletionNotDue records that DeleteOnTermination need not be set.
func (k *known) deletionNotDue() { k.deleteOnTerminationDue = time.Time{} }

// deletionSet records DeleteOnTermination according to a reply.
func (k *known) deletionSet(on bool, now time.Time) {
	a := *k.Attachment
	a.DeleteOnTermination = on
	k.Attachment, k.replied = &a, now
	k.deletionNotDue()
}

// list returns the ENIs by device index and ID. The caller must not change the list.
func (v *view) list() []*known {
	other := func(k *known) bool { return v.enis[k.ID] != k }
	if len(v.sorted) != len(v.enis) || slices.ContainsFunc(v.sorted, other) || !slices.IsSortedFunc(v.sorted, byPlace) {
		v.sorted = slices.SortedFunc(maps.Values(v.enis), byPlace)
	}
	return v.sorted
}

func byPlace(x, y *known) int {
	return cmp.Or(cmp.Compare(x.index(), y.index()), cmp.Compare(x.ID, y.ID))
}

// primary returns the instance's primary ENI.
func (v *view) primary() (*known, bool) {
	for _, k := range v.list() {
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

// placed returns the properties that matter for the choice of subnets and security groups.
func (k *known) placed() placement.ENI {
	return placement.ENI{
		VPCID: k.VPCID, Zone: k.Zone, SubnetID: k.SubnetID, Groups: k.Groups, Address: k.Primary,
		Created: k.owner.createdAt(), Ours: k.facts.ours(),
	}
}

// created adds an ENI created according to a reply.
func (v *view) created(f facts, now time.Time) {
	k := newKnown(f)
	k.replied = now
	k.assigned(k.held, now)
	v.enis[k.ID] = k
}

// attached records an attachment by a reply. DeleteOnTermination is off after an attachment through the API (EC2 API
// Reference, NetworkInterfaceAttachment); the next plan sees that and sets it.
func (v *view) attached(k *known, a cloud.Attachment, now time.Time) {
	k.Attachment, k.replied, k.attachUnresolved = &a, now, false
}

// detached records a detachment by a reply.
func (v *view) detached(k *known, now time.Time) {
	a := *k.Attachment
	a.Status = "detaching"
	k.Attachment, k.replied, k.attachUnresolved = &a, now, false
	delete(v.detaching, k.ID)
	v.lookups.schedule(k.ID, now.Add(time.Second))
}

// detachBegan records that an ENI is withdrawn from the node, and that the detachment is, or may have been, requested
// as of now.
func (v *view) detachBegan(id string, now time.Time) { v.detaching[id] = now }

// detachCancelled records that an ENI will not be detached.
func (v *view) detachCancelled(id string) { delete(v.detaching, id) }

// wasDeleted records a deletion by a reply.
func (v *view) wasDeleted(id string, now time.Time) { v.deleted[id] = now }

// forget drops an ENI that is not attached.
func (v *view) forget(id string) {
	delete(v.enis, id)
	delete(v.detaching, id)
	v.lookups.forget(id)
}

// attachmentUnresolved records that a call to attach or detach an ENI failed in a way that may hide its effect.
func (v *view) attachmentUnresolved(id string) {
	if k, ok := v.enis[id]; ok {
		k.attachUnresolved = true
	}
}

// conclude updates one ENI after a listing. Committed means that a recorded detachment is never undone.
func (v *view) conclude(id string, at time.Time, lag time.Duration, committed bool) {
	k := v.enis[id]
	v.lookups.seen(id, k, at)
	attached := k != nil && k.phase() == plan.Attached
	if since, ok := v.detaching[id]; ok && (!attached || at.Sub(since) >= lag) {
		if k != nil {
			k.attachUnresolved = false
		}
		if !attached || !committed {
			delete(v.detaching, id) // if still attached, publishing the ENI restores it to the node
		}
	}
}

// missingLinks schedules lookups of ENIs whose links disappeared or returned according to the node. A missing link is
// stronger evidence than an old reply.
func (v *view) missingLinks(missing []string, now time.Time) {
	gone, back := v.lookups.links.changed(missing, now)
	for _, id := range slices.Concat(gone, back) {
		if v.enis[id] == nil { // a node may name any ENI, and many nodes share the lookups
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

// returning lists addresses being released, and those released according to a recent reply.
func (k *known) returning() (out []Release) {
	for _, m := range []map[netip.Prefix]time.Time{k.releasing, k.removed} {
		for _, p := range sortedKeys(m) {
			out = append(out, Release{Prefix: p, ENI: k.ID, Since: m[p]})
		}
	}
	return out
}

func sortedKeys(m map[netip.Prefix]time.Time) []netip.Prefix {
	if len(m) == 0 {
		return nil
	}
	return slices.SortedFunc(maps.Keys(m), cloud.ComparePrefixes)
}

// Seed gives the reconciler the last confirmed inventory, so that a lagging listing does not restore addresses that
// were being released. Call it before Run. Nothing in the cloud is changed before it has been observed.
func (r *Reconciler) Seed(inv Inventory) {
	if inv.InstanceID != r.cfg.InstanceID {
		return
	}
	now := r.cfg.Clock.Now()
	// The wall clock may have been set back since: a reply must not take precedence over listings for longer than it
	// would have.
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
		// While this program was down, others may have released addresses: listings are not corrected from the file,
		// but one that may lag behind the last reply is followed by another.
		if visible := inv.At.Add(r.cfg.Lag); now.Before(visible) {
			k.replied = visible.Add(-r.cfg.Settle)
			r.view.lookups.schedule(e.ID, visible)
		}
	}
	for _, l := range inv.Leaving {
		if l.Attached && r.cfg.process.sharesNode {
			continue // included in Fleet.Committed
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
		if slices.Contains(k.held, rel.Prefix) { // until a listing resolves it, however old it is
			k.releasing[rel.Prefix] = past(rel.Since)
		} else {
			k.removed[rel.Prefix] = past(rel.Since)
		}
	}
}
