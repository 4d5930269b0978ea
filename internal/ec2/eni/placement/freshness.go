package eni

import (
	"time"

	"github.com/berthnet/berth/internal/retry"
)

// subnetsAge is how old free counts may be before growing.
const subnetsAge = time.Minute

// exhaustedAge is subnetsAge for a node whose subnets have no room for what it
// lacks: others may free addresses at any time. One call serves all such nodes
// of a process; nodes that each ask for themselves keep to subnetsAge.
const exhaustedAge = 10 * time.Second

// subnetCounts is how old the free counts are that a node's plans go by.
type subnetCounts struct {
	shared    bool      // one call serves many nodes
	asOf      time.Time // as of when free counts are known
	newerThan time.Time // free counts must be as of then or later
	exhausted bool      // the node would grow if its subnets had room
	drains    bool      // outdated ENIs are, as far as subnets have room for others
	retryAt   time.Time // when a subnet that was refused is worth another try
}

// since is the moment as of which, or later, free counts are new enough at now.
func (c *subnetCounts) since(now time.Time) time.Time {
	since := youngerThan(c.age(), now)
	if c.newerThan.After(since) {
		return c.newerThan
	}
	return since
}

func (c *subnetCounts) age() time.Duration {
	if c.shared && c.exhausted {
		return exhaustedAge
	}
	return subnetsAge
}

// stale tells whether free counts are to be asked for.
func (c *subnetCounts) stale(now time.Time) bool { return c.asOf.Before(c.since(now)) }

// due is when a subnet is tried again, or others are asked about than for growth.
func (c *subnetCounts) due(now time.Time) time.Time {
	first := retry.Earliest(now, c.retryAt)
	if c.exhausted {
		first = retry.Earliest(now, first, c.asOf.Add(c.age()))
	}
	if c.drains {
		first = retry.Earliest(now, first, c.asOf.Add(outdatedAge))
	}
	return first
}
