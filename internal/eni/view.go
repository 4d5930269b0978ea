package eni

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/eni/plan"
)

// view is what is known of one node's ENIs: the last listing, corrected by the
// replies of calls since. Listings may trail the truth (EC2 Developer Guide,
// "Eventual consistency"), so what a reply said outranks them for a while.
type view struct {
	settle  time.Duration
	enis    map[string]*known
	deleted map[string]time.Time // ENIs that a reply said were deleted
	// contradictions are what listings say that cannot be true, with the ENIs concerned.
	contradictions map[string][]string
}

// known is one ENI.
type known struct {
	cloud.ENI
	described        bool                       // a listing had it; else it is as a reply, or what was stored, told
	replied          time.Time                  // when a reply last changed its attachment or being
	refusals         int                        // how often it was surely not attached, for what may be wrong with it
	attachReplyLost  time.Time                  // when a reply to attaching it was last lost
	attachUnresolved bool                       // attaching or detaching was asked for and the reply was lost
	added            map[netip.Prefix]time.Time // given by a reply; a listing without them is old
	removed          map[netip.Prefix]time.Time // taken by a reply; a listing with them is old
	releasing        map[netip.Prefix]time.Time // withdrawn from pods, the cloud asked or about to be
	disputed         int                        // addresses and prefixes listed for it that another may have
	contradiction    string                     // what the last listing said of it that cannot be true
	terminationDue   time.Time                  // since when its DeleteOnTermination is to be set; zero: no call was begun for that
	ambiguous        bool                       // listed with another's MAC, primary address or device index: left alone
}

func newView(settle time.Duration) *view {
	return &view{settle: settle, enis: map[string]*known{}, deleted: map[string]time.Time{}, contradictions: map[string][]string{}}
}

func newKnown(e cloud.ENI) *known {
	return &known{ENI: e, added: map[netip.Prefix]time.Time{}, removed: map[netip.Prefix]time.Time{}, releasing: map[netip.Prefix]time.Time{}}
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
func (v *view) merge(listed []cloud.ENI, now time.Time, scope func(*known) bool) {
	before := make([]cloud.ENI, 0, len(v.enis))
	for _, k := range v.list() {
		before = append(before, k.ENI)
	}
	seen := map[string]bool{}
	for _, e := range listed {
		seen[e.ID] = true
		e.Addresses, e.Prefixes = once(e.Addresses), once(e.Prefixes)
		if v.fresh(v.deleted[e.ID], now) {
			continue
		}
		k, ok := v.enis[e.ID]
		if !ok {
			k = newKnown(e)
			k.described, v.enis[e.ID] = true, k
			continue
		}
		k.merge(e, v, now)
	}
	maps.DeleteFunc(v.enis, func(id string, k *known) bool {
		return !seen[id] && scope(k) && !v.fresh(k.replied, now)
	})
	maps.DeleteFunc(v.deleted, func(_ string, t time.Time) bool { return !v.fresh(t, now) })
	v.arbitrate(before)
}

// once is a list with each of its values once.
func once[T comparable](list []T) []T {
	var out []T
	for _, x := range list {
		if !slices.Contains(out, x) {
			out = append(out, x)
		}
	}
	return out
}

func (k *known) merge(e cloud.ENI, v *view, now time.Time) {
	old := func(t time.Time) bool { return !v.fresh(t, now) }
	for _, m := range []map[netip.Prefix]time.Time{k.added, k.removed} {
		maps.DeleteFunc(m, func(_ netip.Prefix, t time.Time) bool { return old(t) })
	}
	k.described = true
	k.keepForLife(&e)
	e.Addresses = k.addresses(e.Addresses)
	e.Prefixes = k.prefixes(e.Prefixes)
	if v.fresh(k.replied, now) {
		e.Attachment, e.Status = k.attached(e)
	}
	k.ENI = e
	held := map[netip.Prefix]bool{}
	for _, p := range k.held() {
		held[p] = true
	}
	for p := range k.releasing {
		if !held[p] { // gone; an older listing that still has it must not bring it back
			delete(k.releasing, p)
			k.removed[p] = now
		}
	}
}

// attached decides between what a reply said of the attachment lately and what
// a listing says: the reply, but for what only a later listing can know.
func (k *known) attached(listed cloud.ENI) (*cloud.Attachment, string) {
	switch {
	case k.phase() == plan.Detaching && listed.Attachment == nil: // it is over
		return nil, listed.Status
	case k.attachUnresolved && phaseOf(listed.Attachment) != k.phase(): // the call whose reply was lost took effect
		k.attachUnresolved = false
		return listed.Attachment, listed.Status
	case k.Attachment != nil && k.Attachment.ID == "" && listed.Attachment != nil: // as stored, without the ID
		a := *listed.Attachment
		a.Status = k.Attachment.Status
		return &a, listed.Status
	case samePlace(k.Attachment, listed.Attachment): // a reply may name another's
		a := *k.Attachment
		a.ID = listed.Attachment.ID
		return &a, k.Status
	default:
		return k.Attachment, k.Status
	}
}

// addresses corrects a listing's addresses by the replies since.
func (k *known) addresses(listed []netip.Addr) []netip.Addr {
	out := slices.DeleteFunc(slices.Clone(listed), func(a netip.Addr) bool { _, gone := k.removed[host(a)]; return gone })
	for p := range k.added {
		if p.IsSingleIP() && !slices.Contains(out, p.Addr()) {
			out = append(out, p.Addr())
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

func (k *known) prefixes(listed []netip.Prefix) []netip.Prefix {
	out := slices.DeleteFunc(slices.Clone(listed), func(p netip.Prefix) bool { _, gone := k.removed[p]; return gone })
	for p := range k.added {
		if !p.IsSingleIP() && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(x, y netip.Prefix) int { return x.Addr().Compare(y.Addr()) })
	return out
}

// isReleasing tells whether an address or prefix is on its way back.
func (k *known) isReleasing(p netip.Prefix) bool { _, ok := k.releasing[p]; return ok }

// held are the ENI's IPv4 addresses and prefixes for pods.
func (k *known) held() []netip.Prefix { return slices.Concat(hosts(k.Addresses), k.Prefixes) }

// assigned records what a reply assigned.
func (k *known) assigned(things []netip.Prefix, now time.Time) {
	for _, p := range things {
		k.added[p] = now
		delete(k.removed, p)
		delete(k.releasing, p)
	}
	k.Addresses, k.Prefixes = k.addresses(k.Addresses), k.prefixes(k.Prefixes)
}

// unassigned records what a reply unassigned.
func (k *known) unassigned(things []netip.Prefix, now time.Time) {
	for _, p := range things {
		k.removed[p] = now
		delete(k.added, p)
		delete(k.releasing, p)
	}
	k.Addresses, k.Prefixes = k.addresses(k.Addresses), k.prefixes(k.Prefixes)
}

// phase is where the ENI is on its way in or out.
func (k *known) phase() plan.Phase { return phaseOf(k.Attachment) }

func phaseOf(a *cloud.Attachment) plan.Phase {
	switch {
	case a == nil:
		return plan.Detached
	case a.Status == "detaching" || a.Status == "detached":
		return plan.Detaching
	default:
		return plan.Attached
	}
}

func (k *known) index() int {
	if k.Attachment == nil {
		return 0
	}
	return k.Attachment.DeviceIndex
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
		if primary(k.ENI) && !k.ambiguous {
			return k, true
		}
	}
	return nil, false
}
