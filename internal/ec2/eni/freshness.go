package eni

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/berthnet/berth/internal/retry"
)

// freshness decides whether the view is fresh enough to plan on and to publish.
type freshness struct {
	lag time.Duration // how long a change may take to show in listings

	replied   time.Time // last reply that gave the node an address or an attachment
	confirmed time.Time // time of the last full observation
	observeAt time.Time // when the next one is due for repair; zero for now, or if the fleet makes these listings

	stale      bool      // the cloud contradicted the view: no planning before the next observation
	staleSince time.Time // earlier observations do not count

	publishHeld      bool      // someone else wrote the published state: no publishing before the next observation
	observeNotBefore time.Time // time at which all replies so far are visible in listings

	invalidated atomic.Bool // set by any goroutine: see Reconciler.Invalidate
}

// given records that a reply gave the node an address or an attachment.
func (c *freshness) given(at time.Time) { c.replied = at }

// repairAt sets when the next observation for repair is due.
func (c *freshness) repairAt(at time.Time) { c.observeAt = at }

// onlySince disregards observations from before at.
func (c *freshness) onlySince(at time.Time) { c.staleSince = at }

// markStale requires an observation before anything is planned.
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

// outdated reports whether a listing is older than the known state.
func (c *freshness) outdated(at time.Time) bool {
	return at.Before(c.confirmed) || at.Before(c.staleSince) || at.Before(c.observeNotBefore)
}

// mayObserve reports whether a listing made now shows every reply so far.
func (c *freshness) mayObserve(now time.Time) bool { return !c.observeNotBefore.After(now) }

// releasePublish ends the effect of Invalidate after an observation.
func (c *freshness) releasePublish() { c.publishHeld, c.observeNotBefore = false, time.Time{} }

// observed records a full listing, and when the next one for repair is due.
func (c *freshness) observed(at, next time.Time) {
	c.confirmed, c.stale, c.observeAt = at, false, next
}

// unconfirmed reports whether there has been no full observation yet.
func (c *freshness) unconfirmed() bool { return c.confirmed.IsZero() }

// confirmedLater reports whether the last observation was made at least d after t.
func (c *freshness) confirmedLater(t time.Time, d time.Duration) bool {
	return c.confirmed.Sub(t) >= d
}

// mayPublish returns nil if the known state may be published.
func (c *freshness) mayPublish() error {
	if c.publishHeld || c.invalidated.Load() {
		return errors.New("the view is stale until EC2 has been observed")
	}
	return nil
}

// due returns when a delayed observation may be made, or one for repair is due.
func (c *freshness) due(now time.Time) time.Time {
	return retry.Earliest(now, c.observeNotBefore, c.observeAt)
}
