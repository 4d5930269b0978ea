package eni

import (
	"slices"
	"time"

	"github.com/berthnet/berth/internal/retry"
)

// links are the ENIs whose links the node lacks, as it says. Somebody may have detached one,
// so the cloud is asked at once; its listings may trail that.
type links struct {
	lag   time.Duration        // how long an ENI's driver may take to start again
	since map[string]time.Time // by ENI
	flips map[string]flips     // by ENI; of those that went or came lately
}

func newLinks(lag time.Duration) links {
	return links{lag: lag, since: map[string]time.Time{}, flips: map[string]flips{}}
}

// flips are how often the link of an ENI went or came, as the node says. It may lie, and calls at EC2 are
// shared by all nodes: the more flips, the longer between two looks.
type flips struct {
	count int
	last  time.Time
}

// firstGap is the time between looks for the second flip. It doubles with each, up to linkLooks; after forgetFlips
// without one it begins anew.
const (
	firstGap    = time.Second
	forgetFlips = 5 * linkLooks
)

// flipped notes a flip, and returns when to look at the ENI for it.
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

// linkLooks is for how long an ENI that is attached, and has no link, is looked for between
// listings.
const linkLooks = 2 * time.Minute

// changed takes the ENIs whose links are missing now, and returns those of which that is news:
// they are among these now, or not any more.
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

// noStock tells whether others are to be had in place of what an ENI has: not for as long as
// its driver may take to start again.
func (l *links) noStock(id string, now time.Time) bool {
	since, ok := l.since[id]
	return ok && now.Sub(since) >= l.lag
}

// again is when to look again at an ENI that was not detached yet at a moment; zero: that does
// not depend on its link.
func (l *links) again(id string, at time.Time) time.Time {
	since, ok := l.since[id]
	lasted := at.Sub(since)
	if !ok || lasted > linkLooks {
		return time.Time{}
	}
	return at.Add(max(time.Second, lasted/2, l.gap(l.flips[id].count-1)))
}

// due is when what an ENI has is no stock any more.
func (l *links) due(now time.Time) (first time.Time) {
	for _, since := range l.since {
		if at := since.Add(l.lag); at.After(now) {
			first = retry.Earliest(time.Time{}, first, at)
		}
	}
	return first
}
