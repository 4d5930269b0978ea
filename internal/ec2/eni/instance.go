package eni

import (
	"sync/atomic"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/retry"
)

// instance is what is known of the instance itself: whether it exists and runs, and what its type
// allows. EC2 may answer from a replica that trails the others, so an answer that does not know the
// instance decides nothing: it is asked again after a while.
type instance struct {
	lag time.Duration // how long an answer may trail the truth

	typ       string
	typeKnown bool         // the type is from the cloud, or from the instance itself
	limits    cloud.Limits // of the type, as of limitsOf
	limitsOf  string       // the type whose limits the cloud named

	missing      int       // listings in a row without its primary ENI
	missingSince time.Time // when the first of them was made
	unknownSince time.Time // when the cloud first did not know it; zero: it does
	vanished     bool      // the cloud says that it does not exist
	stopped      bool      // ... that it does not run
	uncertain    bool      // it may be stopped, or run again
	suspectedAt  time.Time // when someone last said so
	askAt        time.Time // when it is asked for again, as the last answer may trail; zero: not scheduled

	suspected atomic.Bool // see Reconciler.CheckInstance
}

// applySuspicion applies a call of CheckInstance, and reports whether there was one: the last answer no
// longer counts.
func (i *instance) applySuspicion(now time.Time) bool {
	if !i.suspected.Swap(false) {
		return false
	}
	i.uncertain, i.suspectedAt = true, now
	return true
}

// listed takes a listing with the instance's primary ENI, and reports whether earlier listings lacked
// it.
func (i *instance) listed() (missed bool) {
	if !i.unknownSince.IsZero() {
		i.unknownSince, i.askAt = time.Time{}, time.Time{}
	}
	missed = i.missing > 0 || i.vanished
	i.missing, i.vanished = 0, false
	return missed
}

// unlisted takes a listing without the instance's primary ENI, and reports whether the instance is to
// be asked for. A listing may trail a new instance, so the first one decides nothing.
func (i *instance) unlisted(at time.Time) (ask bool) {
	if i.missing++; i.missing == 1 {
		i.missingSince = at
	}
	return i.missing > 1 && at.Sub(i.missingSince) >= i.lag
}

// askDue reports whether the instance is to be asked for now: someone doubts that it runs, or the last
// answer may have trailed a change. Waits says that a recent question failed.
func (i *instance) askDue(now time.Time, waits bool) bool {
	if !i.askAt.IsZero() {
		return !i.askAt.After(now)
	}
	return (i.uncertain || i.stopped) && !waits
}

// instanceState is what an answer of the cloud says of the instance.
type instanceState int

const (
	instanceUnanswered instanceState = iota // an error: nothing follows
	instanceUnknown                         // the cloud does not know it, and is asked again
	instanceGone
	instanceStopped
	instanceRuns
)

// answered takes the cloud's answer to a question that was sent at asked.
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
		i.uncertain = true // the question is still open
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
	// An answer without a change, soon after someone reported a change,
	// may trail it.
	if visible := i.suspectedAt.Add(i.lag); halted == i.stopped && state != instanceGone && asked.Before(visible) {
		i.askAt = visible
	}
	i.uncertain, i.stopped = false, halted
	return state
}

// doubt has the instance asked for, since an error may mean that it does not run.
func (i *instance) doubt() { i.uncertain = true }

// hasType records the type that EC2, or the instance itself, named; empty: it named none.
func (i *instance) hasType(typ string) { i.typ, i.typeKnown = typ, typ != "" }

// retype has the type asked for again: another one was configured.
func (i *instance) retype() { i.typeKnown, i.limitsOf = false, "" }

// seed takes the limits of a stored inventory, unless the instance is known to be of another type by
// now.
func (i *instance) seed(typ string, l cloud.Limits) {
	if i.limits == (cloud.Limits{}) && (!i.typeKnown || typ == i.typ) {
		i.limits, i.typ = l, typ
	}
}

// limitsKnown reports whether EC2 has said what the type allows.
func (i *instance) limitsKnown() bool { return i.limitsOf != "" && i.limitsOf == i.typ }

// learned takes the limits of a type.
func (i *instance) learned(typ string, l cloud.Limits) {
	i.typ, i.typeKnown, i.limitsOf, i.limits = typ, true, typ, l
}

// due returns when the instance is asked for again.
func (i *instance) due(now time.Time) time.Time { return retry.Earliest(now, i.askAt) }
