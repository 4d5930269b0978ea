package plan

import "time"

// Lasting remembers how much of a node's excess has persisted, so that what a
// short dip in pods freed is not given back and asked for again.
type Lasting struct {
	since time.Time // zero: none
	floor int       // the least since then
}

// Allow is told the excess at now and answers how much of it has lasted for
// delay. When there is more by now, that begins to count from now.
func (e *Lasting) Allow(n int, now time.Time, delay time.Duration) int {
	if n <= 0 {
		*e = Lasting{}
		return 0
	}
	if e.since.IsZero() {
		*e = Lasting{since: now, floor: n}
	}
	e.floor = min(e.floor, n)
	if now.Sub(e.since) < delay {
		return 0
	}
	lasted := e.floor
	if n > lasted {
		*e = Lasting{since: now, floor: n}
	}
	return lasted
}

// Due is when the excess will have lasted for delay; zero without excess.
func (e *Lasting) Due(delay time.Duration) time.Time {
	if e.since.IsZero() {
		return time.Time{}
	}
	return e.since.Add(delay)
}
