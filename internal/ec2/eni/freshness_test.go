package eni

import "testing"

func TestFreshness(t *testing.T) {
	c := freshness{stale: true, lag: 5 * second}
	if c.applyInvalidation(unix(1)) {
		t.Error("invalidated by nobody")
	}
	first := c.unconfirmed()
	c.observed(unix(2), unix(62))
	if !first || c.unconfirmed() || c.stale || c.mayPublish() != nil {
		t.Errorf("after the first observation: %+v", &c)
	}
	if !c.outdated(unix(1)) || c.outdated(unix(2)) {
		t.Error("a listing from before the last does not count, one as of it does")
	}
	c.replied = unix(9)
	c.invalidated.Store(true)
	if c.mayPublish() == nil {
		t.Error("published although it was invalidated")
	}
	if !c.applyInvalidation(unix(10)) || !c.publishHeld || !c.stale {
		t.Errorf("invalidated: %+v", &c)
	}
	if c.mayPublish() == nil || !c.outdated(unix(13)) || c.outdated(unix(14)) {
		t.Error("no listing counts before the last reply shows in it")
	}
	c.releasePublish()
	c.observed(unix(14), unix(74))
	if c.mayPublish() != nil || c.outdated(unix(14)) {
		t.Errorf("observed again: %+v", &c)
	}
}
