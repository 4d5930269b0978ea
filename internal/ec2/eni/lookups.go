package eni

import (
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/retry"
)

// lookups schedules the ENIs that are described one by one: to see a detachment
// end, what a call did whose reply was lost, or why the node lacks a link.
type lookups struct {
	at         map[string]time.Time      // when, by ENI
	unresolved map[string]unresolvedCall // by ENI; the node does not grow while there is one
	links      links
}

// unresolvedCall is an assignment or creation whose reply was lost. It may have
// taken effect, and listings may not show that before some time.
type unresolvedCall struct {
	before map[netip.Prefix]bool // what the ENI had
	until  time.Time
	made   bool // the ENI is new, and a listing may not have it yet
}

func newLookups(lag time.Duration) lookups {
	return lookups{at: map[string]time.Time{}, unresolved: map[string]unresolvedCall{}, links: newLinks(lag)}
}

// schedule has an ENI described at a time, whatever was scheduled before.
func (l *lookups) schedule(id string, at time.Time) { l.at[id] = at }

// scheduleBy has an ENI described at a time, or before.
func (l *lookups) scheduleBy(id string, at time.Time) {
	if scheduled, ok := l.at[id]; !ok || at.Before(scheduled) {
		l.at[id] = at
	}
}

// scheduleUnlessSet has an ENI described at a time, unless it will be anyway.
func (l *lookups) scheduleUnlessSet(id string, at time.Time) {
	if _, ok := l.at[id]; !ok {
		l.at[id] = at
	}
}

// next returns the ENI that is to be described now, the one that is due for longest
// first. Urgent limits the choice to those that growth waits for.
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

// blocksGrowth reports whether an ENI has an unresolved call.
func (l *lookups) blocksGrowth(id string) bool {
	_, unresolved := l.unresolved[id]
	return unresolved
}

// blockGrowth reports whether any ENI has an unresolved call.
func (l *lookups) blockGrowth() bool { return len(l.unresolved) > 0 }

// assignmentLost holds growth back until a listing shows whether an assignment took
// effect whose reply was lost.
func (l *lookups) assignmentLost(k *known, until time.Time) {
	u := unresolvedCall{before: map[netip.Prefix]bool{}, until: until}
	for _, p := range k.held {
		u.before[p] = true
	}
	l.unresolved[k.ID] = u
}

// creationDoubtful holds growth back until a listing shows whether an ENI exists that
// was named by a reply which cannot be true.
func (l *lookups) creationDoubtful(id string, now, until time.Time) {
	l.at[id] = now
	l.unresolved[id] = unresolvedCall{until: until, made: true}
}

// forget drops an ENI that was deleted.
func (l *lookups) forget(id string) {
	delete(l.at, id)
	delete(l.unresolved, id)
	delete(l.links.flips, id)
}

// done drops what was scheduled for an ENI: it was described.
func (l *lookups) done(id string) { delete(l.at, id) }

// described drops what was scheduled for an ENI at or before the time of a listing.
func (l *lookups) described(id string, at time.Time) {
	if scheduled, ok := l.at[id]; ok && !scheduled.After(at) {
		delete(l.at, id)
	}
}

// seen takes what a listing says of an ENI; k is nil if the ENI is not there. It
// schedules the next lookup where one is needed.
func (l *lookups) seen(id string, k *known, at time.Time) {
	if u, ok := l.unresolved[id]; ok {
		effect := k != nil && slices.ContainsFunc(k.held, func(p netip.Prefix) bool { return !u.before[p] })
		if effect || k == nil && !u.made || !at.Before(u.until) {
			delete(l.unresolved, id)
		} else {
			l.at[id] = at.Add(time.Second)
		}
	}
	if k == nil {
		return
	}
	if k.phase() == plan.Detaching {
		l.at[id] = at.Add(k.detachPoll(at))
	}
	if again := l.links.again(id, at); k.phase() != plan.Detached && !again.IsZero() {
		l.at[id] = again
	}
}

// due returns when the next lookup is, the next call counts as resolved, or a link
// has been missing for long.
func (l *lookups) due(now time.Time) time.Time {
	first := l.links.due(now)
	for _, at := range l.at {
		first = retry.Earliest(now, first, at)
	}
	for _, u := range l.unresolved {
		first = retry.Earliest(now, first, u.until)
	}
	return first
}

// detachPoll returns how long after a look at a detaching ENI the next follows:
// detaching takes seconds, but may hang for hours.
func (k *known) detachPoll(now time.Time) time.Duration {
	if k.replied.IsZero() { // someone else detaches it
		return 10 * time.Second
	}
	return min(time.Minute, max(2*time.Second, now.Sub(k.replied)/4))
}
