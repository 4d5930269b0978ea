package eni

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/berthnet/berth/internal/retry"
)

// freshness decides whether the view is fresh enough to be planned on and to be published.
type freshness struct {
	lag time.Duration // how long a reply may take to show in listings

	replied   time.Time // when a reply last gave the node an address or an attachment
	confirmed time.Time // when the last full observation was made
	observeAt time.Time // when the next is due, for repair; zero: at once, or someone else lists for that

	stale      bool      // the cloud contradicted the view: nothing is planned before the next observation
	staleSince time.Time // only observations as of then or later count

	publishHeld      bool      // someone else wrote what was published: nothing is published before the next observation
	observeNotBefore time.Time // when every reply so far shows in listings

	invalidated atomic.Bool // set by any goroutine: see Reconciler.Invalidate
}

// given records that a reply gave the node an address or an attachment.
func (c *freshness) given(at time.Time) { c.replied = at }

// repairAt sets when the next observation is due for repair.
func (c *freshness) repairAt(at time.Time) { c.observeAt = at }

// onlySince has only observations as of then or later count.
func (c *freshness) onlySince(at time.Time) { c.staleSince = at }

// markStale has the cloud observed before anything is planned.
func (c *freshness) markStale(now time.Time) { c.stale, c.staleSince = true, now }

// applyInvalidation applies a call of Invalidate, and reports whether there was one.
func (c *freshness) applyInvalidation(now time.Time) bool {
	if !c.invalidated.Swap(false) {
		return false
	}
	c.publishHeld = true
	c.markStale(now)
	if visible := c.replied.Add(c.lag); visible.After(now) {
		c.observeNotBefore = visible
	}
	return true
}

// outdated reports whether a listing is older than what is known.
func (c *freshness) outdated(at time.Time) bool {
	return at.Before(c.confirmed) || at.Before(c.staleSince) || at.Before(c.observeNotBefore)
}

// mayObserve reports whether every reply so far shows in a listing made now.
func (c *freshness) mayObserve(now time.Time) bool { return !c.observeNotBefore.After(now) }

// releasePublish ends the effect of Invalidate: the cloud was observed.
func (c *freshness) releasePublish() { c.publishHeld, c.observeNotBefore = false, time.Time{} }

// observed records a full listing, and when the next one is due for repair.
func (c *freshness) observed(at, next time.Time) {
	c.confirmed, c.stale, c.observeAt = at, false, next
}

// unconfirmed reports whether there was no full observation yet.
func (c *freshness) unconfirmed() bool { return c.confirmed.IsZero() }

// confirmedLater reports whether the last observation was made at least d after t.
func (c *freshness) confirmedLater(t time.Time, d time.Duration) bool {
	return c.confirmed.Sub(t) >= d
}

// mayPublish returns nil when what is known may be published.
func (c *freshness) mayPublish() error {
	if c.publishHeld || c.invalidated.Load() {
		return errors.New("the view is stale until EC2 has been observed")
	}
	return nil
}

// due returns when an observation that must wait may be made, or one for repair is due.
func (c *freshness) due(now time.Time) time.Time {
	return retry.Earliest(now, c.observeNotBefore, c.observeAt)
}
