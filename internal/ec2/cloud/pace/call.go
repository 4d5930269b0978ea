package pace

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
)

// The maximum numbers of attempts.
const (
	TransientTries = 4 // for idempotent calls, within the call's timeout
	ThrottledTries = 6 // each waits for its turn
	firstBackoff   = 200 * time.Millisecond
	maxBackoff     = 5 * time.Second
)

// Reply is the result of one attempt. Returned as an error by Calls, it has more details than a *cloud.Error.
type Reply struct {
	Err *cloud.Error // nil on success
	// Code is the code reported to an Observer if the error has none from the cloud; CodeNoReply if empty.
	Code string
	// Unsent means that the call certainly had no effect, although Err is Transient.
	Unsent bool
	// Answered means that the call took effect but its reply is invalid. It is not repeated.
	Answered bool
	// Cure, if set, means that the call had no effect and may succeed after Cure, which is called once.
	Cure func()
}

// Error is the text of Err, which must not be nil.
func (r *Reply) Error() string { return r.Err.Error() }

// Unwrap returns Err.
func (r *Reply) Unwrap() error { return r.Err }

// Do makes one call: it waits for its turn, sends the call, and repeats it as far as its result and kind allow.
// The context passed to send ends with the call's timeout. The error is always a *cloud.Error; it is of class
// Throttled only if no attempt had an effect.
func (s *Set) Do(ctx context.Context, c Call, send func(context.Context) Reply) error {
	a := attempt{set: s, call: c, left: s.options.CallTimeout}
	for {
		r := a.once(ctx, send)
		switch {
		case r.Err == nil, a.lostReply && c.GoneIsDone && r.Err.Class == cloud.Gone:
			return nil
		case r.Answered:
			return r.Err
		case a.retry(ctx, r):
			continue
		}
		if a.lostReply && r.Err.Class == cloud.Throttled {
			e := *r.Err
			e.Class = cloud.Transient // an earlier attempt may have taken effect
			return &e
		}
		return r.Err
	}
}

// attempt is the state of a call across its attempts.
type attempt struct {
	set  *Set
	call Call

	ticket    uint64        // place in the queue
	left      time.Duration // remaining call timeout
	transient int
	throttled int
	cured     bool
	lostReply bool // an earlier attempt may have taken effect
}

// once makes one attempt when its turn comes.
func (a *attempt) once(ctx context.Context, send func(context.Context) Reply) Reply {
	s, op := a.set, a.call.Action
	permit, ticket, waited, err := s.acquire(ctx, a.call, a.ticket)
	a.ticket = ticket
	if waited > 0 {
		s.options.Observer.Limited(op, waited)
	}
	if err != nil {
		return Reply{Err: &cloud.Error{
			Class: cloud.Throttled, Op: op,
			Err: fmt.Errorf("not sent: waited %v for the rate limit of this action: %w", waited.Round(time.Millisecond), err),
		}}
	}
	callCtx, cancel := context.WithTimeoutCause(ctx, a.left, noReply(s.options.CallTimeout))
	defer cancel()
	start := s.clock.Now()
	r := send(callCtx)
	took := s.clock.Now().Sub(start)
	a.left -= took
	if r.Err != nil && r.Err.Code == "" && !r.Answered && callCtx.Err() != nil && ctx.Err() == nil {
		e := *r.Err
		e.Err = fmt.Errorf("%w (%w)", context.Cause(callCtx), e.Err)
		r.Err = &e
	}
	s.report(permit, r.outcome())
	s.options.Observer.Call(op, r.code(), took)
	return r
}

// noReply is the error of a call without a reply within a time. It wraps context.DeadlineExceeded.
type noReply time.Duration

// Error implements error.
func (d noReply) Error() string {
	return fmt.Sprintf("no reply within %v: %v", time.Duration(d), context.DeadlineExceeded)
}

// Unwrap returns context.DeadlineExceeded.
func (noReply) Unwrap() error { return context.DeadlineExceeded }

// outcome is what the reply reveals about the granted rate.
func (r Reply) outcome() outcome {
	switch {
	case r.Err == nil, r.Answered:
		return passed
	case r.Err.Class == cloud.Throttled:
		return refused
	case r.Err.Code != "":
		return passed
	}
	return lost
}

// code is the code reported to an Observer for the reply.
func (r Reply) code() string {
	switch {
	case r.Err == nil, r.Answered:
		return CodeOK
	case r.Err.Code != "":
		return r.Err.Code
	case r.Code != "":
		return r.Code
	}
	return CodeNoReply
}

// retry reports whether to repeat the call, after waiting until it may be sent again.
func (a *attempt) retry(ctx context.Context, r Reply) bool {
	cured := r.Cure != nil && !a.cured
	if cured {
		r.Cure()
		a.cured = true
	}
	if ctx.Err() != nil {
		return false
	}
	switch {
	case cured:
		return true
	case r.Err.Class == cloud.Throttled:
		a.throttled++
		a.set.options.Logger.Debug("EC2 throttled a call", "op", a.call.Action, "code", r.Err.Code, "attempt", a.throttled)
		return a.throttled < ThrottledTries
	case r.Err.Class == cloud.Transient:
		a.lostReply = a.lostReply || !r.Unsent
		a.transient++
		return a.call.Idempotent && a.transient < TransientTries && a.backoff(ctx)
	}
	return false
}

// backoff waits before the next attempt; false if there is no time left.
func (a *attempt) backoff(ctx context.Context) bool {
	d := min(maxBackoff, firstBackoff<<(a.transient-1))
	d = d/2 + rand.N(d)
	if d >= a.left {
		return false
	}
	a.left -= d
	select {
	case <-a.set.clock.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
