package eni

import (
	"sync/atomic"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/retry"
)

// instance is what is known of the instance itself: whether it exists and runs,
// where it is, and what its type allows. An answer of the cloud may be of a
// part of it that trails the others, so nothing follows from one that does not
// know the instance: it is asked again after a while.
type instance struct {
	lag time.Duration // how long an answer may trail the truth

	typ       string
	typeKnown bool         // the cloud told the type, or the instance itself
	limits    cloud.Limits // of the type, as of limitsOf
	limitsOf  string       // the type whose limits the cloud told

	missing      int       // listings in a row without its primary ENI
	missingSince time.Time // as of when the first of them was
	unknownSince time.Time // since when the cloud does not know it when asked; zero: it does
	vanished     bool      // the cloud says that it is no more
	stopped      bool      // ... that it does not run
	uncertain    bool      // it may be stopped, or run again
	suspectedAt  time.Time // when somebody last said so
	askAt        time.Time // when it is asked for once more, as the last answer may trail; zero: it is not

	suspected atomic.Bool // see Reconciler.CheckInstance
}

// applySuspicion takes up what CheckInstance said, and reports whether there was
// something: what the last answer was matters no more.
func (i *instance) applySuspicion(now time.Time) bool {
	if !i.suspected.Swap(false) {
		return false
	}
	i.uncertain, i.suspectedAt = true, now
	return true
}

// listed takes a listing with the instance's primary ENI, and reports whether the
// instance was missed before.
func (i *instance) listed() (missed bool) {
	if !i.unknownSince.IsZero() {
		i.unknownSince, i.askAt = time.Time{}, time.Time{}
	}
	missed = i.missing > 0 || i.vanished
	i.missing, i.vanished = 0, false
	return missed
}

// unlisted takes a listing without it as of a moment, and reports whether the
// instance is to be asked for. A listing may trail a new instance, so the first
// says nothing.
func (i *instance) unlisted(at time.Time) (ask bool) {
	if i.missing++; i.missing == 1 {
		i.missingSince = at
	}
	return i.missing > 1 && at.Sub(i.missingSince) >= i.lag
}

// askDue reports whether the instance is to be asked for now: somebody doubts that
// it runs, or the last answer may have trailed what happened. Waits: a failure
// was not long ago.
func (i *instance) askDue(now time.Time, waits bool) bool {
	if !i.askAt.IsZero() {
		return !i.askAt.After(now)
	}
	return (i.uncertain || i.stopped) && !waits
}

// An instanceState is what an answer of the cloud tells of the instance.
type instanceState int

const (
	instanceUnanswered instanceState = iota // an error: nothing follows
	instanceUnknown                         // the cloud does not know it, and is asked once more
	instanceGone
	instanceStopped
	instanceRuns
)

// answered takes the cloud's answer to a question that was asked at asked.
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
		i.uncertain = true // what was asked is not answered
		return state
	}
	if err == nil {
		i.unknownSince = time.Time{}
		if in.Type != "" {
			i.hasType(in.Type) // a stopped instance may have been given another
		}
	}
	i.vanished = i.vanished || state == instanceGone
	halted := state == instanceStopped
	// An answer that nothing has changed, so soon after somebody said that
	// something has, may trail what happened.
	if visible := i.suspectedAt.Add(i.lag); halted == i.stopped && state != instanceGone && asked.Before(visible) {
		i.askAt = visible
	}
	i.uncertain, i.stopped = false, halted
	return state
}

// doubt has the instance asked for, since an error may mean that it does not run.
func (i *instance) doubt() { i.uncertain = true }

// hasType records the type that EC2, or the instance itself, told.
func (i *instance) hasType(typ string) { i.typ, i.typeKnown = typ, true }

// retype has the type asked for again: another one was configured.
func (i *instance) retype() { i.typeKnown, i.limitsOf = false, "" }

// seed takes the limits of a stored inventory, unless the instance is known to be of
// another type by now.
func (i *instance) seed(typ string, l cloud.Limits) {
	if i.limits == (cloud.Limits{}) && (!i.typeKnown || typ == i.typ) {
		i.limits, i.typ = l, typ
	}
}

// limitsKnown reports whether EC2 told what the type allows.
func (i *instance) limitsKnown() bool { return i.limitsOf != "" && i.limitsOf == i.typ }

// learned takes the limits of a type.
func (i *instance) learned(typ string, l cloud.Limits) {
	i.typ, i.typeKnown, i.limitsOf, i.limits = typ, true, typ, l
}

// due returns when the instance is asked for once more.
func (i *instance) due(now time.Time) time.Time { return retry.Earliest(now, i.askAt) }
