// Package bubble executes runs in virtual time (testing/synctest) or, if the job says so, in real time, each in a child
// process, so that no run inherits the heap of another. A program that uses it calls Child at the beginning of main, and then
// Run of its jobs.
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

// Work is a function that a child process executes: it receives its order as JSON, and returns an
// outcome that can be encoded as JSON.
type Work func(ctx context.Context, order json.RawMessage) (outcome any, err error)

// Job is one kind of run: a function of an order that can be encoded as JSON, executed in a child process.
type Job[In, Out any] struct {
	Name string
	Do   func(context.Context, In) (Out, error)
	Real func(In) bool // whether an order runs in real time; nil: none does
}

// Work returns the job in the form that Child takes.
func (j Job[In, Out]) Work() Work {
	return func(ctx context.Context, order json.RawMessage) (any, error) {
		var in In
		if err := json.Unmarshal(order, &in); err != nil {
			return nil, fmt.Errorf("decode the order: %w", err)
		}
		return j.Do(ctx, in)
	}
}

// Run executes one run. Profile is the file for its CPU profile, and with the suffix .heap1 and so on for those of the heap
// at each call of LiveHeap; empty means none. An error names the order.
func (j Job[In, Out]) Run(ctx context.Context, order In, profile string) (out Out, err error) {
	c := call{Work: j.Name, Profile: profile, Real: j.Real != nil && j.Real(order)}
	if err := c.run(ctx, order, &out); err != nil {
		return out, fmt.Errorf("%+v: %w", order, err)
	}
	return out, nil
}

// childArg marks a process as a child that executes one run.
const childArg = "virtual-run"

// call is the second argument of a child process.
type call struct {
	Work    string
	Profile string
	Real    bool
	Order   json.RawMessage
}

// Child executes a run and exits if this is a child process. Otherwise it returns.
func Child(works map[string]Work) {
	if len(os.Args) != 3 || os.Args[1] != childArg {
		return
	}
	order := []byte(os.Args[2])
	os.Args = os.Args[:1] // testing.Main parses the arguments
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

// runHere executes a run in this process, in a synctest bubble unless it runs in real time.
func runHere(t *testing.T, works map[string]Work, order []byte) (out any, err error) {
	var c call
	if err := json.Unmarshal(order, &c); err != nil {
		return nil, fmt.Errorf("decode the call: %w", err)
	}
	work, ok := works[c.Work]
	if !ok {
		return nil, fmt.Errorf("unknown work %q", c.Work)
	}
	if c.Profile != "" {
		f, err := os.Create(c.Profile)
		if err != nil {
			return nil, fmt.Errorf("create the profile: %w", err)
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		// Started outside the bubble, where time is real.
		if err := pprof.StartCPUProfile(f); err != nil {
			return nil, fmt.Errorf("start the CPU profile: %w", err)
		}
		defer pprof.StopCPUProfile()
		heaps = heapProfiles{prefix: c.Profile + ".heap"}
	}
	if c.Real {
		return work(t.Context(), c.Order)
	}
	synctest.Test(t, func(t *testing.T) { out, err = work(t.Context(), c.Order) })
	return out, err
}

// run executes an order in a child process and decodes its outcome.
func (c call) run(ctx context.Context, order, outcome any) (err error) {
	if c.Order, err = json.Marshal(order); err != nil {
		return fmt.Errorf("encode the order: %w", err)
	}
	arg, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("encode the call: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the executable of this program: %w", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	var output bytes.Buffer
	cmd := exec.CommandContext(ctx, self, childArg, string(arg))
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = &output, &output, []*os.File{w}
	err = cmd.Start()
	_ = w.Close()
	if err != nil {
		return fmt.Errorf("start a child process: %w", err)
	}
	decodeErr := json.NewDecoder(r).Decode(outcome)
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w\n%s", c.Work, err, tail(output.Bytes()))
	}
	return decodeErr
}

// tail returns the end of a run's output.
func tail(b []byte) []byte { return b[max(0, len(b)-4000):] }

// CPU returns the CPU time that this process has used. It is real time, even in a bubble.
func CPU() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts) // never fails on Linux
	return time.Duration(ts.Nano())
}

// heapProfiles writes a heap profile for each measurement of the heap.
type heapProfiles struct {
	prefix string // of the files; empty: none
	count  int
}

var heaps heapProfiles // of this process, which executes one run

func (h *heapProfiles) write() {
	if h.prefix == "" {
		return
	}
	h.count++
	f, err := os.Create(fmt.Sprint(h.prefix, h.count))
	if err == nil {
		err = errors.Join(pprof.Lookup("heap").WriteTo(f, 0), f.Close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "heap profile not written:", err)
	}
}

// LiveHeap returns the size of the heap after a full collection.
func LiveHeap() uint64 {
	runtime.GC()
	runtime.GC() // collects the objects that finalizers of the first collection released
	heaps.write()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Parts are the background tasks of a run.
type Parts struct {
	group *errgroup.Group
	ctx   context.Context
}

// NewParts returns an empty Parts, and a context that ends when the first task fails.
func NewParts(ctx context.Context) (*Parts, context.Context) {
	group, ctx := errgroup.WithContext(ctx)
	return &Parts{group, ctx}, ctx
}

// Start starts a task. Its error is ignored once the context has ended.
func (p *Parts) Start(name string, do func(context.Context) error) {
	p.group.Go(func() error {
		if err := do(p.ctx); err != nil && p.ctx.Err() == nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
}

// Wait waits until all tasks have returned and remaining timers have fired. The context must have ended.
func (p *Parts) Wait() error {
	err := p.group.Wait()
	<-time.After(time.Hour)
	return err
}
