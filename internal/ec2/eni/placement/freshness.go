package placement

import (
	"time"

	"github.com/berthnet/berth/internal/retry"
)

// countsAge is the age up to which free counts are used for growing.
const countsAge = time.Minute

// exhaustedAge is countsAge for a node whose subnets have no room for what it
// lacks, since others may free addresses at any time. It applies where one call
// serves all such nodes of a process; a node that asks for itself alone keeps to
// countsAge.
const exhaustedAge = 10 * time.Second

// freshness decides when the free counts of a node's subnets are asked for again.
type freshness struct {
	shared    bool      // one call serves many nodes
	asOf      time.Time // when the counts were asked for
	newerThan time.Time // the counts must be as of then or later
	exhausted bool      // the node would grow if its subnets had room
	drains    bool      // the node replaces outdated ENIs as far as its subnets have room
	retryAt   time.Time // when a subnet that refused is tried again
}

// since returns the earliest time as of which counts are fresh at now.
func (c *freshness) since(now time.Time) time.Time {
	since := youngerThan(c.age(), now)
	if c.newerThan.After(since) {
		return c.newerThan
	}
	return since
}

func (c *freshness) age() time.Duration {
	if c.shared && c.exhausted {
		return exhaustedAge
	}
	return countsAge
}

// due returns when a subnet is tried again, or counts are asked for although the
// node does not grow; zero: never.
func (c *freshness) due(now time.Time) time.Time {
	first := retry.Earliest(now, c.retryAt)
	if c.exhausted {
		first = retry.Earliest(now, first, c.asOf.Add(c.age()))
	}
	if c.drains {
		first = retry.Earliest(now, first, c.asOf.Add(outdatedAge))
	}
	return first
}
