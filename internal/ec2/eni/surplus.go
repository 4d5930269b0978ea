package eni

import (
	"slices"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/retry"
)

// surplus is how long a node has had more than its policy keeps, or other ENIs than
// are configured.
type surplus struct {
	delay   time.Duration // for which it must last
	excess  plan.Lasting  // addresses
	movable plan.Lasting  // 1 while an ENI could be emptied onto the others

	outdated plan.Lasting // 1 while there is an outdated ENI that is to be drained
	drains   bool         // as that was answered last
}

// allow notes in a state what of its excess may go by now, and with drain whether
// outdated ENIs may.
func (u *surplus) allow(l cloud.Limits, p ipam.Policy, s *plan.State, drain bool, now time.Time) {
	outdated := 0
	if drain && slices.ContainsFunc(s.ENIs, func(e plan.ENI) bool { return e.Outdated }) {
		outdated = 1
	}
	u.drains = u.outdated.Allow(outdated, outdated, now, u.delay) > 0
	s.Drain = u.drains
	excess, total := plan.Excess(l, p, *s)
	s.Release = u.excess.Allow(excess, total, now, u.delay)
	movable := 0
	if plan.Movable(l, p, *s) {
		movable = 1
	}
	s.Moves = u.movable.Allow(movable, movable, now, u.delay) > 0
}

// rest begins the time anew for which an ENI must have been dispensable before it is emptied.
func (u *surplus) rest() { u.movable = plan.Lasting{} }

// due is when excess will have lasted.
func (u *surplus) due(now time.Time) time.Time {
	return retry.Earliest(now, u.excess.Due(now, u.delay), u.movable.Due(now, u.delay), u.outdated.Due(now, u.delay))
}
