package cloudfake

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
)

// Front delays and throttles calls, fails them before or after they take effect, and logs them.
type Front struct {
	clock clock.Clock

	mu        sync.Mutex // guards all below
	latency   time.Duration
	latencies map[string]time.Duration // by method, overriding latency
	shared    *bucket
	own       map[string]Bucket  // the limits of single actions
	buckets   map[string]*bucket // by action
	refused   float64            // share of calls that are throttled at random
	dice      *rand.Rand
	stats     map[string]Stats
	busy      time.Duration // CPU time of all calls
	faults    []*Fault
	calls     []Call
}

// Stats count the calls of one action.
type Stats struct {
	Calls   int // in all
	Refused int // throttled
	Failed  int // for other reasons
}

// Stats returns the counts by EC2's name of the action.
func (f *Front) Stats() map[string]Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.stats)
}

// Total is the sum of the Stats of the named actions, or of all.
func (f *Front) Total(actions ...string) (sum Stats) {
	all := f.Stats()
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

// ResetStats resets the counts and the CPU time.
func (f *Front) ResetStats() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.stats)
	f.busy = 0
}

// CPU is the CPU time of all calls.
func (f *Front) CPU() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.busy
}

// call describes a call.
type call struct {
	method string // method of cloud.API
	action pace.Call
	eni    string // ID of the ENI; for DetachENI, ID of the attachment
	n      int    // requested addresses or prefixes
}

func (q call) refuse(class cloud.Class, code, format string, args ...any) error {
	return &cloud.Error{Class: class, Op: q.action.Action, Code: code, Message: fmt.Sprintf(format, args...)}
}

// do makes a call through the front, and through the client's function if it has one. It holds State.mu
// while work runs.
func (c *Cloud) do(ctx context.Context, q call, work func() error) error {
	through := func(ctx context.Context) error {
		return c.Front.do(ctx, q, func() error {
			c.State.mu.Lock()
			defer c.State.mu.Unlock()
			c.State.enis.settle()
			return work()
		})
	}
	if c.via != nil {
		return c.via(ctx, through)
	}
	return through(ctx)
}

// do delays a call, throttles it or injects a fault as configured, and logs the call.
func (f *Front) do(ctx context.Context, q call, work func() error) (err error) {
	if d := f.delay(q.method); d > 0 {
		select {
		case <-ctx.Done():
		case <-f.clock.After(d):
		}
	}
	if ctx.Err() != nil {
		return &cloud.Error{Class: cloud.Transient, Op: q.action.Action, Err: context.Cause(ctx)}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.measure()()
	op := q.action.Action
	s := f.stats[op]
	s.Calls++
	defer func() {
		f.stats[op] = s
		f.calls = append(f.calls, Call{Op: q.method, ENI: q.eni, N: q.n, At: f.clock.Now(), Err: err})
	}()
	if f.refused > 0 && f.dice.Float64() < f.refused || !f.admit(op) {
		s.Refused++
		return q.refuse(cloud.Throttled, "RequestLimitExceeded", "Request limit exceeded.")
	}
	fault := f.fault(q)
	if fault == nil || fault.After {
		err = work()
	}
	if fault != nil && err == nil {
		err = fault.Err
	}
	if err != nil {
		s.Failed++
	}
	return err
}

// change is do for calls that modify ENIs.
func (c *Cloud) change(ctx context.Context, q call, work func() error) error {
	return c.do(ctx, q, func() error {
		err := work()
		if err == nil {
			c.State.enis.remember()
		}
		return err
	})
}

// SetLatency delays each call of a method; an empty name means all others.
func (f *Front) SetLatency(method string, d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if method == "" {
		f.latency = d
	} else {
		f.latencies[method] = d
	}
}

// delay is the latency of a method.
func (f *Front) delay(method string) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if d, ok := f.latencies[method]; ok {
		return d
	}
	return f.latency
}

// measure starts a measurement of CPU time, which ends when the returned function is called. It pins the
// goroutine, because the clock is that of the thread. f.mu is held.
func (f *Front) measure() func() {
	runtime.LockOSThread()
	start := threadTime()
	return func() {
		f.busy += threadTime() - start
		runtime.UnlockOSThread()
	}
}

// Bucket is a token bucket: initially full, one token per call that is not refused.
type Bucket struct {
	Rate float64 // tokens per second
	Size float64
}

// bucket is a Bucket with its current tokens.
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

// SetBuckets replaces Options.Shared and Options.Buckets. All buckets are full afterwards.
func (f *Front) SetBuckets(shared *Bucket, own map[string]Bucket) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.own = own
	f.shared = newBucket(shared, f.clock.Now())
	clear(f.buckets)
}

// bucketOf is the action's own bucket; nil if it has none. f.mu is held.
func (f *Front) bucketOf(op string, now time.Time) *bucket {
	if b, ok := f.buckets[op]; ok {
		return b
	}
	b, ok := f.own[op]
	if !ok && strings.HasPrefix(op, "Describe") {
		b, ok = f.own["Describe"]
	}
	if !ok {
		b, ok = f.own[""]
	}
	if ok {
		f.buckets[op] = newBucket(&b, now)
	} else {
		f.buckets[op] = nil
	}
	return f.buckets[op]
}

// Draw takes the tokens of a call of op, if enough are left, like a call by another client of the account.
// It does not count in Stats.
func (f *Front) Draw(op string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.admit(op)
}

// admit takes the tokens of a call from both buckets or from neither. f.mu is held.
func (f *Front) admit(op string) bool {
	now := f.clock.Now()
	own := f.bucketOf(op, now)
	if own != nil && !own.fill(now) || f.shared != nil && !f.shared.fill(now) {
		return false
	}
	for _, b := range []*bucket{own, f.shared} {
		if b != nil {
			b.tokens--
		}
	}
	return true
}

// Call is one call that was made.
type Call struct {
	Op  string // the method's name
	ENI string
	N   int // requested addresses or prefixes
	At  time.Time
	Err error
}

// Fault makes calls fail. It ends after Times calls; 0 means never.
type Fault struct {
	Op     string // the method's name; any if empty
	Action string // EC2's name of the action, which differs by family; any if empty
	ENI    string // ID in the call; any if empty
	Times  int
	Err    error
	// After lets the call take effect before it fails, as if the reply were lost.
	After bool
	hits  int
}

// Err returns an error of a class, for faults.
func Err(class cloud.Class, code string) error {
	return &cloud.Error{Class: class, Op: "fault", Code: code, Message: "injected"}
}

// Inject adds a fault.
func (f *Front) Inject(fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = append(f.faults, &fault)
}

// ClearFaults removes all faults.
func (f *Front) ClearFaults() { f.mu.Lock(); defer f.mu.Unlock(); f.faults = nil }

// fault returns the fault that applies to a call; nil for none. f.mu is held.
func (f *Front) fault(q call) *Fault {
	for _, each := range f.faults {
		if (each.Op == "" || each.Op == q.method) && (each.Action == "" || each.Action == q.action.Action) &&
			(each.ENI == "" || each.ENI == q.eni) && (each.Times == 0 || each.hits < each.Times) {
			each.hits++
			return each
		}
	}
	return nil
}

// Calls lists the calls so far.
func (f *Front) Calls() []Call { f.mu.Lock(); defer f.mu.Unlock(); return slices.Clone(f.calls) }

// ResetCalls empties the log of calls.
func (f *Front) ResetCalls() { f.mu.Lock(); defer f.mu.Unlock(); f.calls = nil }

// Count counts the calls of the named methods so far.
func (f *Front) Count(methods ...string) (n int) {
	for _, call := range f.Calls() {
		if slices.Contains(methods, call.Op) {
			n++
		}
	}
	return n
}
