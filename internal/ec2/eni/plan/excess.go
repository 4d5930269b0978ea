package plan

import "time"

// Lasting measures how much of a node's excess has persisted, and for how long, so that addresses freed
// by a short dip in pods are not released and asked for again.
type Lasting struct {
	levels  []level // by both fields, ascending: pods end one after the other, and each adds
	allowed int     // the last result of Allow
	total   int     // of the last call of Allow
}

// level is an excess of at least n that has lasted since a time.
type level struct {
	since time.Time
	n     int
}

// Allow takes the excess at now and the total that it is part of, and returns how much of the excess
// has lasted for delay. If the total falls, by up to the last result, that was released excess. If the
// excess falls by more, pods took the rest, which counts as the part that came last.
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
			since = l.since // of the first level that contains it
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

// Due returns when more of the excess will have lasted for delay than at now; zero: never.
func (e *Lasting) Due(now time.Time, delay time.Duration) time.Time {
	for _, l := range e.levels {
		if at := l.since.Add(delay); at.After(now) {
			return at
		}
	}
	return time.Time{}
}
