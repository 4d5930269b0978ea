package pace

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/limits"
)

// fallbackFor is how long limits from the built-in table are used before the cloud is asked again.
const fallbackFor = 10 * time.Minute

// instanceTypes caches the limits of instance types.
type instanceTypes struct {
	options Options
	ask     func(ctx context.Context, instanceType string) (cloud.Limits, error) // the cloud
	asking  singleflight.Group                                                   // calls in flight, by type

	mu    sync.Mutex // guards known
	known map[string]knownLimits
}

// knownLimits are the limits of an instance type. Those from the cloud are kept permanently, others until a time.
type knownLimits struct {
	limits cloud.Limits
	until  time.Time // zero for permanent entries
}

// Limits returns the limits of a type, requesting them from the cloud once. If the cloud does not return them, the
// built-in table serves for fallbackFor.
func (t *instanceTypes) Limits(ctx context.Context, instanceType string) (cloud.Limits, error) {
	if l, ok := t.recall(instanceType); ok {
		return l, nil
	}
	// Concurrent callers share the call, so none of them may cancel it.
	ch := t.asking.DoChan(instanceType, func() (any, error) {
		if l, ok := t.recall(instanceType); ok {
			return l, nil
		}
		return t.find(context.WithoutCancel(ctx), instanceType)
	})
	select {
	case r := <-ch:
		if r.Err != nil {
			return cloud.Limits{}, r.Err
		}
		return r.Val.(cloud.Limits), nil
	case <-ctx.Done():
		return cloud.Limits{}, &cloud.Error{Class: cloud.Transient, Op: DescribeTypes.Action, Err: context.Cause(ctx)}
	}
}

func (t *instanceTypes) recall(instanceType string) (cloud.Limits, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k, ok := t.known[instanceType]
	if !ok || (!k.until.IsZero() && !t.options.Clock.Now().Before(k.until)) {
		return cloud.Limits{}, false
	}
	return k.limits, true
}

// find gets the limits from the cloud, otherwise from the built-in table.
func (t *instanceTypes) find(ctx context.Context, instanceType string) (cloud.Limits, error) {
	var until time.Time
	l, err := t.ask(ctx, instanceType)
	if err != nil {
		var ok bool
		if l, ok = limits.Lookup(instanceType); !ok {
			return cloud.Limits{}, fmt.Errorf("%w; the built-in table does not know %q either: allow ec2:DescribeInstanceTypes, or use a Berth that knows the type", err, instanceType)
		}
		t.options.Logger.Warn("Using the built-in limits of an instance type because EC2 did not return them",
			"type", instanceType, "err", err)
		until = t.options.Clock.Now().Add(fallbackFor)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known[instanceType] = knownLimits{l, until}
	return l, nil
}
