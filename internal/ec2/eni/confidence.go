package eni

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/berthnet/berth/internal/retry"
)

// confidence is how far the view can be trusted: whether a plan may be made on
// it, and whether it may be published.
type confidence struct {
	replied   time.Time // when a reply last gave the node something
	confirmed time.Time // last full observation
	observeAt time.Time // when the next is due, for repair; zero: at once, unless someone else lists for that

	viewStale  bool      // the cloud contradicted the view: nothing is planned before it was observed
	staleSince time.Time // only observations as of then or later count

	publishHeld      bool      // somebody else wrote what was published: nothing is published before it was observed
	observeNotBefore time.Time // when every reply so far shows in listings

	invalidated atomic.Bool // see Reconciler.Invalidate
}

// markStale has the cloud observed before anything is planned.
func (c *confidence) markStale(now time.Time) { c.viewStale, c.staleSince = true, now }

// applyInvalidation takes up what Invalidate said, and tells whether there was
// something. Lag is how long a reply may take to show in listings.
func (c *confidence) applyInvalidation(now time.Time, lag time.Duration) bool {
	if !c.invalidated.Swap(false) {
		return false
	}
	c.publishHeld = true
	c.markStale(now)
	if visible := c.replied.Add(lag); visible.After(now) {
		c.observeNotBefore = visible
	}
	return true
}

// outdated tells whether a listing as of a moment is older than what is known.
func (c *confidence) outdated(at time.Time) bool {
	return at.Before(c.confirmed) || at.Before(c.staleSince) || at.Before(c.observeNotBefore)
}

// releasePublish ends what Invalidate began: the cloud was observed.
func (c *confidence) releasePublish() { c.publishHeld, c.observeNotBefore = false, time.Time{} }

// observed takes a listing as of a moment, and tells whether it is the first.
func (c *confidence) observed(at, next time.Time) (first bool) {
	first = c.confirmed.IsZero()
	c.confirmed, c.viewStale, c.observeAt = at, false, next
	return first
}

// mayPublish is nil when what is known may be published.
func (c *confidence) mayPublish() error {
	if c.publishHeld || c.invalidated.Load() {
		return errors.New("it is in doubt until EC2 was observed")
	}
	return nil
}

// due is when an observation that must wait may be made, and that for repair.
func (c *confidence) due(now time.Time) time.Time {
	return retry.Earliest(now, c.observeNotBefore, c.observeAt)
}
