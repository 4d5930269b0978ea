package eni

import (
	"sync/atomic"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/retry"
)

// instance is the known state of the instance: whether it exists and runs, and the limits of its type. EC2 may
// reply from a lagging replica, so a single reply without the instance decides nothing: EC2 is asked again later.
type instance struct {
	lag time.Duration // how long a reply may lag behind the actual state

	typ       string
	typeKnown bool         // the type is from the cloud, or from the instance itself
	limits    cloud.Limits // of the type, as of limitsOf
	limitsOf  string       // the type whose limits the cloud returned

	missing      int       // listings in a row without its primary ENI
	missingSince time.Time // time of the first such listing
	unknownSince time.Time // when the cloud first did not know the instance; zero if it does
	vanished     bool      // the instance does not exist according to the cloud
	stopped      bool      // the instance does not run according to the cloud
	uncertain    bool      // the instance may have been stopped or started
	suspectedAt  time.Time // time of the last such suspicion
	askAt        time.Time // when to ask again because the last reply may lag; zero if not scheduled

	suspected atomic.Bool // see Reconciler.CheckInstance
}

// applySuspicion applies a call of CheckInstance, and reports whether there was one. It invalidates the last
// reply.
func (i *instance) applySuspicion(now time.Time) bool {
	if !i.suspected.Swap(false) {
		return false
	}
	i.uncertain, i.suspectedAt = true, now
	return true
}

// listed records a listing with the instance's primary ENI, and reports whether earlier listings lacked it.
func (i *instance) listed() (missed bool) {
	if !i.unknownSince.IsZero() {
		i.unknownSince, i.askAt = time.Time{}, time.Time{}
	}
	missed = i.missing > 0 || i.vanished
	i.missing, i.vanished = 0, false
	return missed
}

// unlisted records a listing without the instance's primary ENI, and reports whether to describe the instance. A
// listing may lag behind a new instance, so the first one decides nothing.
func (i *instance) unlisted(at time.Time) (ask bool) {
	if i.missing++; i.missing == 1 {
		i.missingSince = at
	}
	return i.missing > 1 && at.Sub(i.missingSince) >= i.lag
}

// askDue reports whether to describe the instance now: it may not be running, or the last reply may have lagged
// behind a change. Waits means that a recent request failed.
func (i *instance) askDue(now time.Time, waits bool) bool {
	if !i.askAt.IsZero() {
		return !i.askAt.After(now)
	}
	return (i.uncertain || i.stopped) && !waits
}

// instanceState is the state of the instance according to a reply.
type instanceState int

const (
	instanceUnanswered instanceState = iota // an error, which decides nothing
	instanceUnknown                         // unknown to the cloud, which is asked again
	instanceGone
	instanceStopped
	instanceRuns
)

// answered records the reply to a request sent at asked.
func (i *instance) answered(in cloud.Instance, err error, asked time.Time) instanceState {
	state := instanceRuns
	i.askAt = time.Time{}
	switch {
	case cloud.ClassOf(err) == cloud.Gone:
		state = instanceGone
		if i.unknownSince.IsZero() {
			i.unknownSince = asked
		}
		if i.askAt = i.unknownSince.Add(i.lag); i.askAt.After(asked) {
			state = instanceUnknown
		}
	case err != nil:
		state = instanceUnanswered
	case in.State == "terminated" || in.State == "shutting-down":
		state = instanceGone
	case in.State == "stopped" || in.State == "stopping":
		state = instanceStopped
	}
	if state == instanceUnknown || state == instanceUnanswered {
		i.uncertain = true // still unresolved
		return state
	}
	if err == nil {
		i.unknownSince = time.Time{}
		if in.Type != "" {
			i.hasType(in.Type) // the type of a stopped instance may have changed
		}
	}
	i.vanished = i.vanished || state == instanceGone
	halted := state == instanceStopped
	// Without a change, soon after someone reported one, the reply may lag behind it.
	if visible := i.suspectedAt.Add(i.lag); halted == i.stopped && state != instanceGone && asked.Before(visible) {
		i.askAt = visible
	}
	i.uncertain, i.stopped = false, halted
	return state
}

// doubt schedules a description of the instance, because an error may mean that it does not run.
func (i *instance) doubt() { i.uncertain = true }

// hasType records the type that EC2, or the instance itself, reported; empty if none was.
func (i *instance) hasType(typ string) { i.typ, i.typeKnown = typ, typ != "" }

// retype requires the type to be determined again, because another one was configured.
func (i *instance) retype() { i.typeKnown, i.limitsOf = false, "" }

// seed copies the limits from a stored inventory, unless the instance is already known to have another type.
func (i *instance) seed(typ string, l cloud.Limits) {
	if i.limits == (cloud.Limits{}) && (!i.typeKnown || typ == i.typ) {
		i.limits, i.typ = l, typ
	}
}

// limitsKnown reports whether EC2 has returned the limits of the type.
func (i *instance) limitsKnown() bool { return i.limitsOf != "" && i.limitsOf == i.typ }

// learned records the limits of a type.
func (i *instance) learned(typ string, l cloud.Limits) {
	i.typ, i.typeKnown, i.limitsOf, i.limits = typ, true, typ, l
}

// due returns when to describe the instance again.
func (i *instance) due(now time.Time) time.Time { return retry.Earliest(now, i.askAt) }
