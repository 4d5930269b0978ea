package cloudsim

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthnet/berth/internal/cloud"
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

// bucket is a Bucket with what is in it.
type bucket struct {
	Bucket
	tokens float64
	at     time.Time
}

func newBucket(b *Bucket, now time.Time) *bucket {
	if b == nil {
		return nil
	}
	return &bucket{Bucket: *b, tokens: b.Size, at: now}
}

func (b *bucket) fill(now time.Time) bool {
	b.tokens = min(b.Size, b.tokens+now.Sub(b.at).Seconds()*b.Rate)
	b.at = now
	return b.tokens >= 1-1e-9
}

// SetBuckets changes the limits: those of all actions, if not nil, and of
// single ones, as in Options. All buckets are full then.
func (c *Cloud) SetBuckets(shared *Bucket, own map[string]Bucket) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.options.Shared, c.options.Buckets = shared, own
	c.shared = newBucket(shared, c.clock.Now())
	clear(c.buckets)
}

// bucketOf is the action's own bucket; nil when it has none. c.mu is held.
func (c *Cloud) bucketOf(op string, now time.Time) *bucket {
	if b, ok := c.buckets[op]; ok {
		return b
	}
	b, ok := c.options.Buckets[op]
	if !ok && strings.HasPrefix(op, "Describe") {
		b, ok = c.options.Buckets["Describe"]
	}
	if !ok {
		b, ok = c.options.Buckets[""]
	}
	if ok {
		c.buckets[op] = newBucket(&b, now)
	} else {
		c.buckets[op] = nil
	}
	return c.buckets[op]
}

// Draw takes the tokens of a call of op if they are there, as the call of
// another client of the account does. It counts in no Stats.
func (c *Cloud) Draw(op string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.admit(op)
}

// admit takes the tokens for a call, of both buckets or of none. c.mu is held.
func (c *Cloud) admit(op string) bool {
	now := c.clock.Now()
	own := c.bucketOf(op, now)
	if own != nil && !own.fill(now) || c.shared != nil && !c.shared.fill(now) {
		return false
	}
	for _, b := range []*bucket{own, c.shared} {
		if b != nil {
			b.tokens--
		}
	}
	return true
}

// do is the frame of every call: the delay, the buckets, the books, the counts.
func (c *Cloud) do(ctx context.Context, op string, work func() error) error {
	if c.options.Latency > 0 {
		select {
		case <-ctx.Done():
			return &cloud.Error{Class: cloud.Transient, Op: op, Err: context.Cause(ctx)}
		case <-c.clock.After(c.options.Latency):
		}
	}
	if ctx.Err() != nil {
		return &cloud.Error{Class: cloud.Transient, Op: op, Err: context.Cause(ctx)}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.measure()()
	s := c.stats[op]
	s.Calls++
	defer func() { c.stats[op] = s }()
	c.settle()
	if c.options.Refused > 0 && c.dice.Float64() < c.options.Refused || !c.admit(op) {
		s.Refused++
		return refuse(op, cloud.Throttled, "RequestLimitExceeded", "Request limit exceeded.")
	}
	err := work()
	if err != nil {
		s.Failed++
	}
	return err
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

func refuse(op string, class cloud.Class, code, format string, args ...any) error {
	return &cloud.Error{Class: class, Op: op, Code: code, Message: fmt.Sprintf(format, args...)}
}
