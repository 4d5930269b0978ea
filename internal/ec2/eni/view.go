package eni

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
)

// view is what is known of one node's ENIs: the last listing, corrected by the
// replies of calls since. Listings may trail the truth (EC2 Developer Guide,
// "Eventual consistency"), so what a reply said outranks them for a while.
type view struct {
	settle    time.Duration
	enis      map[string]*known
	deleted   map[string]time.Time // ENIs that a reply said were deleted
	detaching map[string]time.Time // ENIs withdrawn from the node, the detachment not confirmed
	// contradictions are what listings say that cannot be true, with the ENIs concerned.
	contradictions map[string][]string
	logged         map[string]bool // those that were logged
}

// known is one ENI.
type known struct {
	facts
	listed                 bool                       // a listing had it; else it is as a reply, or what was stored, told
	replied                time.Time                  // when a reply last changed its attachment or being
	refusals               int                        // how often it was surely not attached, for what may be wrong with it
	attachReplyLost        time.Time                  // when a reply to attaching it was last lost
	attachUnresolved       bool                       // attaching or detaching was asked for and the reply was lost
	added                  map[netip.Prefix]time.Time // given by a reply; a listing without them is old
	removed                map[netip.Prefix]time.Time // taken by a reply; a listing with them is old
	groupsSet              time.Time                  // when a reply last changed its security groups
	releasing              map[netip.Prefix]time.Time // withdrawn from pods, the cloud asked or about to be
	disputed               cloud.Amount               // addresses and prefixes listed for it that another may have
	contradiction          string                     // what the last listing said of it that cannot be true
	deleteOnTerminationDue time.Time                  // since when its DeleteOnTermination is to be set; zero: no call was begun for that
	ambiguous              bool                       // listed with another's MAC, primary address or device index: left alone
}

func newView(settle time.Duration) *view {
	return &view{
		settle: settle, enis: map[string]*known{}, deleted: map[string]time.Time{}, detaching: map[string]time.Time{},
		contradictions: map[string][]string{}, logged: map[string]bool{},
	}
}

func newKnown(f facts) *known {
	return &known{facts: f, added: map[netip.Prefix]time.Time{}, removed: map[netip.Prefix]time.Time{}, releasing: map[netip.Prefix]time.Time{}}
}

// trustListings makes listings the truth again over every reply so far.
func (v *view) trustListings() {
	for _, k := range v.enis {
		clear(k.added)
		k.replied = time.Time{}
	}
}

// fresh tells whether a reply at t still outranks a listing.
func (v *view) fresh(t, now time.Time) bool { return !t.IsZero() && now.Sub(t) < v.settle }

// merge takes a listing that is complete for the ENIs in scope.
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

// attached decides between what a reply said of the attachment lately and what
// a listing says: the reply, but for what only a later listing can know.
func (k *known) attached(listed *cloud.Attachment) *cloud.Attachment {
	switch {
	case k.phase() == plan.Detaching && listed == nil: // it is over
		return nil
	case k.attachUnresolved && phaseOf(listed) != k.phase(): // the call whose reply was lost took effect
		k.attachUnresolved = false
		return listed
	case k.Attachment != nil && k.Attachment.ID == "" && listed != nil: // as stored, without the ID
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

// correct puts what a listing says that the ENI holds right by the replies since.
func (k *known) correct() {
	held := without(k.held, func(p netip.Prefix) bool { _, gone := k.removed[p]; return gone })
	k.held = inOrder(slices.AppendSeq(held, maps.Keys(k.added)))
}

// isReleasing tells whether an address or prefix is on its way back.
func (k *known) isReleasing(p netip.Prefix) bool { _, ok := k.releasing[p]; return ok }

// kept are what it holds and is not giving back.
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

// list returns the ENIs by device index and ID.
func (v *view) list() []*known {
	return slices.SortedFunc(maps.Values(v.enis), func(x, y *known) int {
		return cmp.Or(cmp.Compare(x.index(), y.index()), cmp.Compare(x.ID, y.ID))
	})
}

// primary finds the ENI that came with the instance.
func (v *view) primary() (*known, bool) {
	for _, k := range v.enis {
		if primary(k.Attachment) && !k.ambiguous {
			return k, true
		}
	}
	return nil, false
}
