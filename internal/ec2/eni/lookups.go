package eni

import (
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/retry"
)

// lookups schedules the ENIs that are described one by one: to see a detachment end, what a call did
// whose reply was lost, or why the node lacks a link.
type lookups struct {
	at         map[string]time.Time      // when, by ENI
	unresolved map[string]unresolvedCall // by ENI; the node does not grow while there is one
	links      links
}

// unresolvedCall is an assignment or creation whose reply was lost. It may have taken effect, and
// listings may not show that before some time.
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

// next returns the ENI that is to be described now, the one that is due for longest first. Urgent
// limits the choice to those that growth waits for.
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

// assignmentLost holds growth back until a listing shows whether an assignment took effect whose reply
// was lost.
func (l *lookups) assignmentLost(k *known, until time.Time) {
	u := unresolvedCall{before: map[netip.Prefix]bool{}, until: until}
	for _, p := range k.held {
		u.before[p] = true
	}
	l.unresolved[k.ID] = u
}

// creationDoubtful holds growth back until a listing shows whether an ENI exists that was named by a
// reply which cannot be true.
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

// seen updates the lookups of an ENI from a listing; k is nil if the ENI does not exist. It schedules the next
// lookup if one is needed.
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

// due returns when the next lookup is, the next call counts as resolved, or a link has been missing for
// long.
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

// detachPoll returns the time between two lookups of a detaching ENI: detaching takes
// seconds, but may hang for hours.
func (k *known) detachPoll(now time.Time) time.Duration {
	if k.replied.IsZero() { // someone else detaches it
		return 10 * time.Second
	}
	return min(time.Minute, max(2*time.Second, now.Sub(k.replied)/4))
}

// links are the ENIs whose links are missing, as the node reports. Someone may have detached such an ENI, so it
// is looked up at once; EC2's listings may trail the detachment.
type links struct {
	lag   time.Duration        // how long an ENI's driver may take to start again
	since map[string]time.Time // by ENI
	flips map[string]flips     // by ENI; of links that recently disappeared or came back
}

func newLinks(lag time.Duration) links {
	return links{lag: lag, since: map[string]time.Time{}, flips: map[string]flips{}}
}

// flips counts how often the link of an ENI disappeared or came back, as the node reports. A node may report
// false changes, and all nodes share the calls to EC2: the more flips, the longer the time between two lookups.
type flips struct {
	count int
	last  time.Time
}

// firstGap is the time between lookups after the second flip. It doubles with each flip, up to
// linkLooks; after forgetFlips without a flip it starts again.
const (
	firstGap    = time.Second
	forgetFlips = 5 * linkLooks
)

// flipped records a flip, and returns when to look the ENI up because of it.
func (l *links) flipped(id string, now time.Time) time.Time {
	f := l.flips[id]
	if f.count == 0 || now.Sub(f.last) >= forgetFlips {
		f = flips{}
	}
	gap := l.gap(f.count)
	f.count++
	f.last = now
	l.flips[id] = f
	return now.Add(gap)
}

func (l *links) gap(count int) time.Duration {
	if count == 0 {
		return 0
	}
	return retry.Delay(firstGap, linkLooks, count-1)
}

// linkLooks is for how long an attached ENI without a link is looked up between listings.
const linkLooks = 2 * time.Minute

// changed takes the ENIs whose links are missing now, and returns those whose links went and those
// whose links came back.
func (l *links) changed(missing []string, now time.Time) (gone, back []string) {
	for _, id := range missing {
		if _, ok := l.since[id]; !ok {
			l.since[id] = now
			gone = append(gone, id)
		}
	}
	for id := range l.since {
		if !slices.Contains(missing, id) {
			delete(l.since, id)
			back = append(back, id)
		}
	}
	return gone, back
}

// ignoresAddresses reports whether a plan ignores the addresses of an ENI, since its link has been missing for
// longer than a driver takes to start.
func (l *links) ignoresAddresses(id string, now time.Time) bool {
	since, ok := l.since[id]
	return ok && now.Sub(since) >= l.lag
}

// again returns when to look an ENI up again that was still attached at a given time; zero: its link
// does not require it.
func (l *links) again(id string, at time.Time) time.Time {
	since, ok := l.since[id]
	lasted := at.Sub(since)
	if !ok || lasted > linkLooks {
		return time.Time{}
	}
	return at.Add(max(time.Second, lasted/2, l.gap(l.flips[id].count-1)))
}

// due returns when the next link will have been missing for lag.
func (l *links) due(now time.Time) (first time.Time) {
	for _, since := range l.since {
		if at := since.Add(l.lag); at.After(now) {
			first = retry.Earliest(time.Time{}, first, at)
		}
	}
	return first
}
