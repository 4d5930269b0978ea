package podnics

import "time"

const (
	// quiet is how long a NIC waits for its pod's node before a port is made that is bound
	// nowhere: a scheduler that has room takes some milliseconds for a pod.
	quiet = 500 * time.Millisecond
	// unplacedMost is how long it waits at most while the scheduler is at work.
	unplacedMost = 2 * time.Minute
)

// early is how long a new port waits until it is known where it is to be bound; 0: not any
// longer. Providers make many ports in one call, with their hosts, but bind a port that is
// there in a call of its own: a port made too early costs a pod that second call, and a
// provider with thousands of them a hundred times as many. Waiting loses nothing, as either
// call is as long.
func (c *Controller) early(s *scene) (wait time.Duration) {
	waits := s.pod != nil && s.next.node == ""
	now := c.now()
	c.book.edit(s.o.UID, func(n *nic) {
		if !waits {
			n.unplaced = time.Time{}
			if s.want.Host != "" {
				c.book.placed[n.vpc] = now
			}
			return
		}
		if n.unplaced.IsZero() {
			n.unplaced = now
		}
		wait = unplacedFor(n.unplaced, c.book.placed[n.vpc], now)
	})
	return wait
}

// unplacedFor is how long a NIC waits on whose pod has no node since a moment, while those
// of other pods got one, placed the last: as long as the scheduler is at work, which it was
// not for a while if it found no node for any. So that few look often, the wait grows with
// the time that it has lasted.
func unplacedFor(since, placed, now time.Time) time.Duration {
	due := later(since, placed).Add(quiet)
	if last := since.Add(unplacedMost); due.After(last) {
		due = last
	}
	if !now.Before(due) {
		return 0
	}
	return max(due.Sub(now), min(now.Sub(since)/2, since.Add(unplacedMost).Sub(now)))
}
