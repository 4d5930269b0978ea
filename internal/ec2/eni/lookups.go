package eni

import (
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/retry"
)

// lookups are the ENIs that are to be described singly: to see a detachment
// end, or what a call did whose reply was lost.
type lookups struct {
	at         map[string]time.Time      // when, by ENI
	unresolved map[string]unresolvedCall // by ENI; no more addresses are asked for before
}

// unresolvedCall is an assignment or creation whose reply was lost: it may have
// taken effect, and a listing may trail that until a moment.
type unresolvedCall struct {
	before map[netip.Prefix]bool // what the ENI had
	until  time.Time
	made   bool // the ENI is new, and a listing may not have it yet
}

// next finds the ENI that is to be described now, the longest due first: any,
// or only one that growth waits for.
func (l *lookups) next(now time.Time, urgent bool) (id string, ok bool) {
	for candidate, at := range l.at {
		if urgent && !l.blocksGrowth(candidate) {
			continue
		}
		if !at.After(now) && (id == "" || at.Before(l.at[id]) || at.Equal(l.at[id]) && candidate < id) {
			id = candidate
		}
	}
	return id, id != ""
}

// blocksGrowth tells whether an ENI has an unresolved call.
func (l *lookups) blocksGrowth(id string) bool {
	_, unresolved := l.unresolved[id]
	return unresolved
}

// forget drops an ENI that was deleted.
func (l *lookups) forget(id string) {
	delete(l.at, id)
	delete(l.unresolved, id)
}

// seen takes a listing of one ENI as of a moment; k is nil if it is not there.
func (l *lookups) seen(id string, k *known, at time.Time) {
	if u, ok := l.unresolved[id]; ok {
		effect := k != nil && slices.ContainsFunc(k.held, func(p netip.Prefix) bool { return !u.before[p] })
		if effect || k == nil && !u.made || !at.Before(u.until) {
			delete(l.unresolved, id)
		} else {
			l.at[id] = at.Add(time.Second)
		}
	}
	if k != nil && k.phase() == plan.Detaching {
		l.at[id] = at.Add(k.detachPoll(at))
	}
}

// due is when the next lookup is, or the next call counts as resolved.
func (l *lookups) due(now time.Time) (first time.Time) {
	for _, at := range l.at {
		first = retry.Earliest(now, first, at)
	}
	for _, u := range l.unresolved {
		first = retry.Earliest(now, first, u.until)
	}
	return first
}

// detachPoll is how long after a look at a detaching ENI the next follows:
// detaching takes seconds, but may hang for hours.
func (k *known) detachPoll(now time.Time) time.Duration {
	if k.replied.IsZero() { // someone else's doing
		return 10 * time.Second
	}
	return min(time.Minute, max(2*time.Second, now.Sub(k.replied)/4))
}
