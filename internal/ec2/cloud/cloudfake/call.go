package cloudfake

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
)

// Stats count the calls of one action.
type Stats struct {
	Calls   int // in all
	Refused int // for their rate
	Failed  int // for another reason
}

// Stats tells what was called, by EC2's name of the action.
func (c *Cloud) Stats() map[string]Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.stats)
}

// Total is the sum of the Stats of the named actions, or of all.
func (c *Cloud) Total(actions ...string) (sum Stats) {
	all := c.Stats()
	if len(actions) == 0 {
		for name := range all {
			actions = append(actions, name)
		}
	}
	for _, name := range actions {
		s := all[name]
		sum.Calls, sum.Refused, sum.Failed = sum.Calls+s.Calls, sum.Refused+s.Refused, sum.Failed+s.Failed
	}
	return sum
}

// ResetStats forgets the calls and the CPU time so far.
func (c *Cloud) ResetStats() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.stats)
	c.busy = 0
}

// CPU is the processor time that the cloud's own work took.
func (c *Cloud) CPU() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.busy
}

// call is one that is made.
type call struct {
	method string // of cloud.API
	action pace.Call
	eni    string // that it names; the attachment for DetachENI
	n      int    // addresses or prefixes asked for
}

func (q call) refuse(class cloud.Class, code, format string, args ...any) error {
	return &cloud.Error{Class: class, Op: q.action.Action, Code: code, Message: fmt.Sprintf(format, args...)}
}

// do is the frame of every call: the delay, the buckets, the faults, the books,
// the counts.
func (c *Cloud) do(ctx context.Context, q call, work func() error) (err error) {
	if d := c.delay(q.method); d > 0 {
		select {
		case <-ctx.Done():
		case <-c.clock.After(d):
		}
	}
	if ctx.Err() != nil {
		return &cloud.Error{Class: cloud.Transient, Op: q.action.Action, Err: context.Cause(ctx)}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.measure()()
	op := q.action.Action
	s := c.stats[op]
	s.Calls++
	defer func() {
		c.stats[op] = s
		c.calls = append(c.calls, Call{Op: q.method, ENI: q.eni, N: q.n, At: c.clock.Now(), Err: err})
	}()
	c.settle()
	if c.options.Refused > 0 && c.dice.Float64() < c.options.Refused || !c.admit(op) {
		s.Refused++
		return q.refuse(cloud.Throttled, "RequestLimitExceeded", "Request limit exceeded.")
	}
	f := c.fault(q)
	if f == nil || f.After {
		err = work()
	}
	if f != nil && err == nil {
		err = f.Err
	}
	if err != nil {
		s.Failed++
	}
	return err
}

// change is do for calls that change ENIs.
func (c *Cloud) change(ctx context.Context, q call, work func() error) error {
	return c.do(ctx, q, func() error {
		err := work()
		if err == nil {
			c.remember()
		}
		return err
	})
}

// delay is how long a call of a method takes.
func (c *Cloud) delay(method string) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d, ok := c.latency[method]; ok {
		return d
	}
	return c.options.Latency
}

// measure adds the CPU time until its result is called to that of the cloud.
// The clock is the thread's, so the goroutine stays on it. c.mu is held.
func (c *Cloud) measure() func() {
	runtime.LockOSThread()
	start := threadTime()
	return func() {
		c.busy += threadTime() - start
		runtime.UnlockOSThread()
	}
}

// threadTime is the CPU time that this thread has used (clock_gettime(2)).
func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
