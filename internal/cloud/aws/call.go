package aws

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/smithy-go"

	"github.com/berthnet/berth/internal/cloud"
)

// How often one call is repeated.
const (
	transientTries = 4 // in all, for idempotent calls, within the call's time-out
	throttledTries = 6 // in all; each of them waits for the limiter
	firstBackoff   = 200 * time.Millisecond
	maxBackoff     = 5 * time.Second
)

// repeatable tells whether a call whose reply was lost may be made again.
type repeatable bool

const (
	idempotent repeatable = true
	once       repeatable = false
)

// invoke makes one EC2 call by the rules of the package comment. The error is
// always a *cloud.Error, of class Throttled only if no attempt had an effect. LostReply tells that some attempt may have taken
// effect although a later one was answered.
func invoke[In, Out any](ctx context.Context, c *Client, op string, again repeatable,
	call func(context.Context, In, ...func(*ec2.Options)) (Out, error), in In,
) (out Out, lostReply bool, err error) {
	a := attempt{client: c, op: op, limiter: c.limiter(op), again: again, left: c.timeout}
	for {
		err := a.once(ctx, func(ctx context.Context) error {
			var err error
			out, err = call(ctx, in)
			return err
		})
		if err == nil {
			return out, a.lostReply, nil
		}
		if !a.retry(ctx, err) {
			if a.lostReply && err.Class == cloud.Throttled {
				err.Class = cloud.Transient // an attempt before this one may have taken effect
			}
			var none Out
			return none, a.lostReply, err
		}
	}
}

// attempt is the state of one call over its repetitions.
type attempt struct {
	client  *Client
	op      string
	limiter *limiter
	again   repeatable

	ticket    uint64        // place in the limiter's queue
	left      time.Duration // of the call's time-out
	transient int
	throttled int
	renewed   bool // credentials were fetched again
	lostReply bool
}

// once sends the call one time, when the limiter lets it.
func (a *attempt) once(ctx context.Context, send func(context.Context) error) *cloud.Error {
	c := a.client
	permit, ticket, waited, err := a.limiter.acquire(ctx, a.ticket)
	a.ticket = ticket
	if waited > 0 {
		c.observer.Limited(a.op, waited)
	}
	if err != nil {
		return &cloud.Error{
			Class: cloud.Throttled, Op: a.op,
			Err: fmt.Errorf("not sent: waited %v for the rate limit of this action: %w", waited.Round(time.Millisecond), err),
		}
	}
	callCtx, cancel := context.WithTimeoutCause(ctx, a.left,
		fmt.Errorf("no reply within %v: %w", c.timeout, context.DeadlineExceeded))
	defer cancel()
	start := c.clock.Now()
	err = send(callCtx)
	took := c.clock.Now().Sub(start)
	a.left -= took
	if err == nil {
		a.limiter.report(permit, false)
		c.observer.Call(a.op, CodeOK, took)
		return nil
	}
	e := fail(a.op, err)
	if e.Code == "" && callCtx.Err() != nil && ctx.Err() == nil {
		e.Err = fmt.Errorf("%w (%w)", context.Cause(callCtx), err)
	}
	// Only an answer says something about the rate that EC2 grants.
	if e.Class == cloud.Throttled || e.Code != "" {
		a.limiter.report(permit, e.Class == cloud.Throttled)
	}
	c.observer.Call(a.op, observedCode(e), took)
	return e
}

// retry tells whether the call is to be made again after e, and waits until then.
func (a *attempt) retry(ctx context.Context, e *cloud.Error) bool {
	c := a.client
	if ctx.Err() != nil {
		return false
	}
	switch {
	case e.Class == cloud.Throttled:
		a.throttled++
		c.logger.Debug("EC2 throttled a call", "op", a.op, "code", e.Code, "attempt", a.throttled)
		return a.throttled < throttledTries
	case expired[e.Code] && !a.renewed:
		c.logger.Info("EC2 refused the credentials, fetching new ones", "op", a.op, "code", e.Code)
		a.renewed = true
		c.creds.forget()
		return true
	case e.Class == cloud.Transient:
		a.lostReply = a.lostReply || observedCode(e) != CodeCredentials
		a.transient++
		return a.again == idempotent && a.transient < transientTries && a.backoff(ctx)
	}
	return false
}

// backoff waits before a repetition; false when there is no time left for one.
func (a *attempt) backoff(ctx context.Context) bool {
	d := min(maxBackoff, firstBackoff<<(a.transient-1))
	d = d/2 + rand.N(d)
	if d >= a.left {
		return false
	}
	a.left -= d
	select {
	case <-a.client.clock.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// observedCode is the code of an error for an Observer.
func observedCode(e *cloud.Error) string {
	if e.Code != "" {
		return e.Code
	}
	if _, ok := errors.AsType[*noCredentials](e.Err); ok {
		return CodeCredentials
	}
	_, bad := errors.AsType[*badAnswer](e.Err)
	_, parse := errors.AsType[*smithy.DeserializationError](e.Err)
	if bad || parse {
		return CodeBadReply
	}
	return CodeNoReply
}
