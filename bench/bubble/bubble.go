// Package bubble does runs in virtual time (testing/synctest), each in a process of its
// own, so that none inherits another's heap. A program that uses it calls Child at the beginning of
// main, and then Run of its jobs.
package bubble

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/pprof"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Work is what a process can be started for: it gets its order as JSON, and returns an
// outcome that JSON can carry.
type Work func(ctx context.Context, order json.RawMessage) (outcome any, err error)

// Job is one kind of run: a function over an order that JSON can carry, done in a process of its own.
type Job[In, Out any] struct {
	Name string
	Do   func(context.Context, In) (Out, error)
}

// Work is the job as Child takes it.
func (j Job[In, Out]) Work() Work {
	return func(ctx context.Context, order json.RawMessage) (any, error) {
		var in In
		if err := json.Unmarshal(order, &in); err != nil {
			return nil, fmt.Errorf("read the order: %w", err)
		}
		return j.Do(ctx, in)
	}
}

// Run does one run. Profile is the file of its CPU profile; empty: none. An error names the order.
func (j Job[In, Out]) Run(ctx context.Context, order In, profile string) (out Out, err error) {
	if err := run(ctx, j.Name, order, &out, profile); err != nil {
		return out, fmt.Errorf("%+v: %w", order, err)
	}
	return out, nil
}

// childArg is how a process knows that it is to do one run.
const childArg = "virtual-run"

// call is the argument of such a process.
type call struct {
	Work    string
	Profile string
	Order   json.RawMessage
}

// Child does the run that the process was started for, if it was, and ends the process.
func Child(works map[string]Work) {
	if len(os.Args) != 3 || os.Args[1] != childArg {
		return
	}
	order := []byte(os.Args[2])
	os.Args = os.Args[:1] // testing.Main has flags of its own
	all := func(string, string) (bool, error) { return true, nil }
	testing.Main(all, []testing.InternalTest{{Name: "run", F: func(t *testing.T) {
		out, err := runHere(t, works, order)
		if err == nil {
			err = json.NewEncoder(os.NewFile(3, "outcome")).Encode(out)
		}
		if err != nil {
			t.Fatal(err)
		}
	}}}, nil, nil)
}

// runHere does a run in this process, in a bubble with a time of its own.
func runHere(t *testing.T, works map[string]Work, order []byte) (out any, err error) {
	var c call
	if err := json.Unmarshal(order, &c); err != nil {
		return nil, fmt.Errorf("read the call: %w", err)
	}
	work, ok := works[c.Work]
	if !ok {
		return nil, fmt.Errorf("work %q: want one that this program has", c.Work)
	}
	if c.Profile != "" {
		f, err := os.Create(c.Profile)
		if err != nil {
			return nil, fmt.Errorf("make the profile: %w", err)
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		// It must start out here, where time is the machine's.
		if err := pprof.StartCPUProfile(f); err != nil {
			return nil, fmt.Errorf("start the profile: %w", err)
		}
		defer pprof.StopCPUProfile()
	}
	synctest.Test(t, func(t *testing.T) { out, err = work(t.Context(), c.Order) })
	return out, err
}

// run has work done by a process of its own, and reads its outcome. Profile is where a CPU
// profile goes; empty: none.
func run(ctx context.Context, work string, order, outcome any, profile string) error {
	body, err := json.Marshal(order)
	if err != nil {
		return fmt.Errorf("write the order: %w", err)
	}
	arg, err := json.Marshal(call{work, profile, body})
	if err != nil {
		return fmt.Errorf("write the call: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, self, childArg, string(arg))
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = &said, &said, []*os.File{w}
	err = cmd.Start()
	_ = w.Close()
	if err != nil {
		return fmt.Errorf("start a run: %w", err)
	}
	decodeErr := json.NewDecoder(r).Decode(outcome)
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w\n%s", work, err, tail(said.Bytes()))
	}
	return decodeErr
}

// tail is the end of what a run said.
func tail(b []byte) []byte { return b[max(0, len(b)-4000):] }

// CPU is this process's CPU time so far, on the kernel's clock, which no bubble changes.
func CPU() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts) // always there on Linux
	return time.Duration(ts.Nano())
}

// LiveHeap is what the process needs after a full collection.
func LiveHeap() uint64 {
	runtime.GC()
	runtime.GC() // the second one collects what the first one's finalizers let go
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Parts are parts of a run that work until it ends.
type Parts struct {
	group *errgroup.Group
	ctx   context.Context
}

// NewParts returns no parts yet, and a context that ends with the first one that fails.
func NewParts(ctx context.Context) (*Parts, context.Context) {
	group, ctx := errgroup.WithContext(ctx)
	return &Parts{group, ctx}, ctx
}

// Start starts a part. Its error does not count once the context has ended.
func (p *Parts) Start(what string, do func(context.Context) error) {
	p.group.Go(func() error {
		if err := do(p.ctx); err != nil && p.ctx.Err() == nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	})
}

// Wait waits for all parts, whose context has ended, and for timers that nobody waits for any more.
func (p *Parts) Wait() error {
	err := p.group.Wait()
	<-time.After(time.Hour)
	return err
}
