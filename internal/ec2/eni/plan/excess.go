package plan

import "time"

// Lasting remembers how much of a node's excess has persisted, and for how long, so
// that what a short dip in pods freed is not given back and asked for again.
type Lasting struct {
	levels  []level // in order of both: pods end one after the other, and each adds
	allowed int     // what was answered last
	total   int     // what the node had then
}

// level is an excess of at least n that has been there since a moment.
type level struct {
	since time.Time
	n     int
}

// Allow returns told the excess at now, and the total of what the node has, and answers
// how much of the excess has lasted for delay. What the total falls by, up to what
// was answered before, was given back of the excess. If the excess falls by more,
// pods took the rest, and that counts as the part which came last.
func (e *Lasting) Allow(n, total int, now time.Time, delay time.Duration) int {
	given := min(e.allowed, max(0, e.total-total))
	e.total = total
	kept := e.levels[:0]
	since := now
	for _, l := range e.levels {
		switch l.n -= given; {
		case l.n <= 0:
		case l.n < n:
			kept = append(kept, l)
		case l.since.Before(since):
			since = l.since // of the first level that has all of it
		}
	}
	e.levels, e.allowed = kept, 0
	if n > 0 {
		e.levels = append(e.levels, level{since, n})
	}
	for _, l := range e.levels {
		if now.Sub(l.since) >= delay {
			e.allowed = l.n
		}
	}
	return e.allowed
}

// Due returns when more of the excess will have lasted for delay than at now; zero
// without such.
func (e *Lasting) Due(now time.Time, delay time.Duration) time.Time {
	for _, l := range e.levels {
		if at := l.since.Add(delay); at.After(now) {
			return at
		}
	}
	return time.Time{}
}
