package aws

import (
	"context"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ec2"

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/cloud/pace"
)

// fallbackFor is how long the limits from the fallback are used before EC2 is
// asked again.
const fallbackFor = 10 * time.Minute

// knownLimits are the limits of one type; those that EC2 gave are kept for
// good, others until a time.
type knownLimits struct {
	limits cloud.Limits
	until  time.Time // zero: for good
}

// Limits implements cloud.API. What EC2 said of a type is remembered as long
// as the client lives. When EC2 does not tell, Options.Fallback answers.
func (c *Client) Limits(ctx context.Context, instanceType string) (cloud.Limits, error) {
	if l, ok := c.known(instanceType); ok {
		return l, nil
	}
	// The call is shared by all that ask meanwhile, so none of them may cancel it.
	ch := c.asking.DoChan(instanceType, func() (any, error) {
		if l, ok := c.known(instanceType); ok {
			return l, nil
		}
		return c.ask(context.WithoutCancel(ctx), instanceType)
	})
	select {
	case r := <-ch:
		if r.Err != nil {
			return cloud.Limits{}, r.Err
		}
		return r.Val.(cloud.Limits), nil
	case <-ctx.Done():
		return cloud.Limits{}, fail(pace.DescribeTypes.Action, context.Cause(ctx))
	}
}

func (c *Client) known(instanceType string) (cloud.Limits, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k, ok := c.types[instanceType]
	if !ok || (!k.until.IsZero() && !c.clock.Now().Before(k.until)) {
		return cloud.Limits{}, false
	}
	return k.limits, true
}

func (c *Client) learn(instanceType string, k knownLimits) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.types[instanceType] = k
}

// ask gets the limits from EC2, else from the fallback.
func (c *Client) ask(ctx context.Context, instanceType string) (cloud.Limits, error) {
	l, err := c.describeType(ctx, instanceType)
	if err == nil {
		c.learn(instanceType, knownLimits{limits: l})
		return l, nil
	}
	l, ok := c.fallback(instanceType)
	if !ok {
		return cloud.Limits{}, fmt.Errorf("%w; the built-in table does not know %q either: allow ec2:DescribeInstanceTypes, or use a Berth that knows the type", err, instanceType)
	}
	c.logger.Warn("Taking the limits of an instance type from the built-in table, EC2 did not tell them",
		"type", instanceType, "err", err)
	c.learn(instanceType, knownLimits{l, c.clock.Now().Add(fallbackFor)})
	return l, nil
}

func (c *Client) describeType(ctx context.Context, instanceType string) (cloud.Limits, error) {
	op := pace.DescribeTypes
	f, page := one("instance-type", instanceType)
	got, err := invoke(ctx, c, op, c.api.DescribeInstanceTypes, &ec2.DescribeInstanceTypesInput{Filters: f, MaxResults: page})
	if err != nil {
		return cloud.Limits{}, err
	}
	switch {
	case len(got.InstanceTypes) == 0:
		return cloud.Limits{}, &cloud.Error{
			Class: cloud.Bug, Op: op.Action, Code: "InvalidInstanceType",
			Message: fmt.Sprintf("the instance type %q does not exist in this region", instanceType),
		}
	case len(got.InstanceTypes) > 1 || string(got.InstanceTypes[0].InstanceType) != instanceType:
		return cloud.Limits{}, fail(op.Action, &badAnswer{fmt.Errorf("instanceTypeSet: expected %s alone", instanceType)})
	}
	var r reading
	l := r.limits(&got.InstanceTypes[0])
	if r.err != nil {
		return cloud.Limits{}, fail(op.Action, r.err)
	}
	return l, nil
}
