package eni

import (
	"net/netip"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/retry"
)

// lookups schedules descriptions of single ENIs: to see a detachment complete, to find the effect of a call whose
// reply was lost, or to find out why the node lacks a link.
type lookups struct {
	at         map[string]time.Time      // time of the lookup, by ENI
	unresolved map[string]unresolvedCall // by ENI; any entry blocks growth
	links      links
}

// unresolvedCall is an assignment or creation whose reply was lost. It may have taken effect without being visible
// in listings yet.
type unresolvedCall struct {
	before map[netip.Prefix]bool // addresses of the ENI before the call
	until  time.Time
	made   bool // the ENI is new and may not be in listings yet
}

func newLookups(lag time.Duration) lookups {
	return lookups{at: map[string]time.Time{}, unresolved: map[string]unresolvedCall{}, links: newLinks(lag)}
}

// schedule schedules a lookup of an ENI, replacing any previous schedule.
func (l *lookups) schedule(id string, at time.Time) { l.at[id] = at }

// scheduleBy schedules a lookup of an ENI at the given time, or earlier.
func (l *lookups) scheduleBy(id string, at time.Time) {
	if scheduled, ok := l.at[id]; !ok || at.Before(scheduled) {
		l.at[id] = at
	}
}

// scheduleUnlessSet schedules a lookup of an ENI unless one is already scheduled.
func (l *lookups) scheduleUnlessSet(id string, at time.Time) {
	if _, ok := l.at[id]; !ok {
		l.at[id] = at
	}
}

// next returns the ENI to describe now: the one that is overdue the longest. Urgent limits the choice to ENIs that
// block growth.
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

// assignmentLost blocks growth until a listing shows whether an assignment with a lost reply took effect.
func (l *lookups) assignmentLost(k *known, until time.Time) {
	u := unresolvedCall{before: map[netip.Prefix]bool{}, until: until}
	for _, p := range k.held {
		u.before[p] = true
	}
	l.unresolved[k.ID] = u
}

// creationDoubtful blocks growth until a listing shows whether the ENI named by an impossible reply exists.
func (l *lookups) creationDoubtful(id string, now, until time.Time) {
	l.at[id] = now
	l.unresolved[id] = unresolvedCall{until: until, made: true}
}

// forget drops a deleted ENI.
func (l *lookups) forget(id string) {
	delete(l.at, id)
	delete(l.unresolved, id)
	delete(l.links.flips, id)
}

// done clears the schedule of an ENI that was described.
func (l *lookups) done(id string) { delete(l.at, id) }

// described clears a lookup of an ENI due at or before the time of a listing.
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

// due returns when the next lookup is due, the next unresolved call counts as resolved, or a link has been missing
// for too long.
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

// detachPoll returns the time between two lookups of a detaching ENI: detaching takes seconds, but may hang for
// hours.
func (k *known) detachPoll(now time.Time) time.Duration {
	if k.replied.IsZero() { // detached by someone else
		return 10 * time.Second
	}
	return min(time.Minute, max(2*time.Second, now.Sub(k.replied)/4))
}

// links tracks ENIs whose links are missing according to the node. Someone may have detached such an ENI, so it is
// looked up immediately; EC2's listings may lag behind the detachment.
type links struct {
	lag   time.Duration        // how long an ENI's driver may take to restart
	since map[string]time.Time // by ENI
	flips map[string]flips     // by ENI; for links that recently disappeared or returned
}

func newLinks(lag time.Duration) links {
	return links{lag: lag, since: map[string]time.Time{}, flips: map[string]flips{}}
}

// flips counts how often the link of an ENI disappeared or returned, according to the node. A node may report false
// changes, and all nodes share the EC2 calls: the more flips, the longer the time between two lookups.
type flips struct {
	count int
	last  time.Time
}

// firstGap is the time between lookups after the second flip. It doubles with each flip, up to linkLooks, and is
// reset after forgetFlips without a flip.
const (
	firstGap    = time.Second
	forgetFlips = 5 * linkLooks
)

// flipped records a flip, and returns when to look up the ENI.
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

// linkLooks is how long an attached ENI without a link is looked up between listings.
const linkLooks = 2 * time.Minute

// changed records the ENIs whose links are missing now, and returns those whose links disappeared and those whose
// links returned.
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

// ignoresAddresses reports whether plans ignore the addresses of an ENI because its link has been missing for
// longer than a driver takes to start.
func (l *links) ignoresAddresses(id string, now time.Time) bool {
	since, ok := l.since[id]
	return ok && now.Sub(since) >= l.lag
}

// again returns when to look up an ENI again that was still attached at the given time; zero if its link does not
// require it.
func (l *links) again(id string, at time.Time) time.Time {
	since, ok := l.since[id]
	lasted := at.Sub(since)
	if !ok || lasted > linkLooks {
		return time.Time{}
	}
	return at.Add(max(time.Second, lasted/2, l.gap(l.flips[id].count-1)))
}

// due returns when the next missing link will have been missing for lag.
func (l *links) due(now time.Time) (first time.Time) {
	for _, since := range l.since {
		if at := since.Add(l.lag); at.After(now) {
			first = retry.Earliest(time.Time{}, first, at)
		}
	}
	return first
}
