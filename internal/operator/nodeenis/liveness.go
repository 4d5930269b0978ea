package nodeenis

import "time"

// liveness is what tells whether a node still exists.
type liveness struct {
	reportedAt time.Time // when the daemon's last report was seen
	vanishedAt time.Time // since when the cloud says that the instance is gone; zero: it does not
	nodeGoneAt time.Time // since when there is no Node; zero: there is
	readiness  readiness
	deleteAt   time.Time // when the object is deleted, if nothing changes; zero: it stays
}

// readiness is whether a Node was ready when it was last looked at, as far as
// that tells of its instance.
type readiness int

const (
	neverReady readiness = iota // not ready since it came, as every Node at first
	ready
	notReady
)

// setReady notes whether the Node is ready, and tells whether one that was is not
// any more, or is again: its instance may have been stopped or started, which
// nothing else tells while the node needs nothing.
func (l *liveness) setReady(is bool) (changed bool) {
	was := l.readiness
	switch {
	case is:
		l.readiness = ready
	case was == ready:
		l.readiness = notReady
	}
	return was != neverReady && was != l.readiness
}

// setVanished notes whether the cloud says that the instance is gone, and tells
// whether that is new.
func (l *liveness) setVanished(is bool, now time.Time) (first bool) {
	switch {
	case !is:
		l.vanishedAt = time.Time{}
	case l.vanishedAt.IsZero():
		l.vanishedAt = now
		return true
	}
	return false
}

// goneSince is since when the node, whose object was created at created, has
// given no sign of life; zero: it lives.
func (l *liveness) goneSince(created time.Time, nodeGone, nodeReady bool, now time.Time) time.Time {
	switch {
	case !nodeGone:
		l.nodeGoneAt = time.Time{}
	case l.nodeGoneAt.IsZero():
		l.nodeGoneAt = now
	}
	var since time.Time
	switch {
	case nodeGone:
		since = l.nodeGoneAt
	case !l.vanishedAt.IsZero() && !nodeReady:
		since = l.vanishedAt
	default:
		return time.Time{}
	}
	for _, sign := range [...]time.Time{l.reportedAt, created} {
		if sign.After(since) {
			since = sign
		}
	}
	return since
}
