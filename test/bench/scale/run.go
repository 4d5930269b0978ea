// Package scale runs Berth's ENI allocator (eni/fleet behind cloud/pace) for up
// to ten thousand nodes against an EC2 in memory, in virtual time, and measures
// what it costs and how long it takes. There is no HTTP and no Kubernetes in it.
//
// Each run is a process of its own, so that none inherits another's heap: a
// program that uses the package calls Child first thing in main, and then Run
// as often as it likes.
package scale

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime/pprof"
	"testing"
	"testing/synctest"
	"time"
)

// Order is one run.
type Order struct {
	Workload Workload
	Nodes    int
	Limits   Limits        // of the EC2 side
	Join     time.Duration // from one node's arrival to the next; 0: all at once
	Calm     bool          // without the throttling that the workload is named for
	// Profile is where a CPU profile of what was measured goes; empty: none.
	Profile string
}

// Workload is what the nodes of a run do.
type Workload string

// The workloads.
const (
	// Join: every node has one ENI and needs 8 addresses on it.
	Join Workload = "join"
	// Event: as Join, then on one node after the other one address is used.
	Event Workload = "event"
	// Fill: every node needs a new ENI.
	Fill Workload = "fill"
	// Subnets: every node needs 11 addresses on a new ENI, in one of three
	// subnets with 400 free addresses each.
	Subnets Workload = "subnets"
	// Memory: every node has 10 addresses used and 8 free.
	Memory Workload = "memory"
	// ThrottledCreate and ThrottledAssign: the first such call is throttled once.
	ThrottledCreate Workload = "throttled-create"
	ThrottledAssign Workload = "throttled-assign"
	// Peers: every node has a process of its own, which makes 500 calls.
	Peers Workload = "peers"
)

// Outcome is what a run measured. Fields that its workload does not have are zero.
type Outcome struct {
	CPU    time.Duration // without that of the EC2 in memory
	Bytes  uint64        // allocated, by the EC2 too
	Heap   uint64        // bytes that live at the end, without the EC2's
	Events int           // that CPU and Bytes are of
	Repair time.Duration // CPU of a minute in which nothing happens but the listing for repair

	Last, Median time.Duration // when nodes had their addresses, or calls of Peers passed, from the start
	Bound        time.Duration // what the limits alone force for the calls that were made
	Calls        map[string]int
	Throttled    int           // calls refused by the limits
	Waited       time.Duration // in Berth's own limiters, all calls together
	ENIs         int           // made
	Exposed      time.Duration // the longest from an ENI's attachment until it went with its instance

	FailedCreates int // for another reason than their rate
}

// TotalCalls is the number of calls that EC2 took, refused ones not counted.
func (o Outcome) TotalCalls() (n int) {
	for _, c := range o.Calls {
		n += c
	}
	return n
}

// childArg is how a process knows that it is to do one run.
const childArg = "scale-run"

// Child does the run that the process was started for, if it was, and ends the process.
func Child() {
	if len(os.Args) != 3 || os.Args[1] != childArg {
		return
	}
	order := []byte(os.Args[2])
	os.Args = os.Args[:1] // testing.Main has flags of its own
	all := func(string, string) (bool, error) { return true, nil }
	testing.Main(all, []testing.InternalTest{{Name: "scale", F: func(t *testing.T) {
		out, err := runHere(t, order)
		if err == nil {
			err = json.NewEncoder(os.NewFile(3, "outcome")).Encode(out)
		}
		if err != nil {
			t.Fatal(err)
		}
	}}}, nil, nil)
}

// runHere does a run in this process, in a bubble with a time of its own.
func runHere(t *testing.T, order []byte) (out Outcome, err error) {
	var o Order
	if err := json.Unmarshal(order, &o); err != nil {
		return Outcome{}, fmt.Errorf("read the order: %w", err)
	}
	work, ok := workloads[o.Workload]
	if !ok {
		return Outcome{}, fmt.Errorf("workload %q: want one of those of this package", o.Workload)
	}
	if o.Profile != "" {
		f, err := os.Create(o.Profile)
		if err != nil {
			return Outcome{}, fmt.Errorf("make the profile: %w", err)
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		// It must start out here, where time is the machine's.
		if err := pprof.StartCPUProfile(f); err != nil {
			return Outcome{}, fmt.Errorf("start the profile: %w", err)
		}
		defer pprof.StopCPUProfile()
	}
	synctest.Test(t, func(t *testing.T) { out, err = work(t.Context(), o) })
	return out, err
}

// Run does a run in a process of its own.
func Run(ctx context.Context, o Order) (Outcome, error) {
	order, err := json.Marshal(o)
	if err != nil {
		return Outcome{}, fmt.Errorf("write the order: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return Outcome{}, fmt.Errorf("find this program: %w", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return Outcome{}, err
	}
	defer r.Close()
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, self, childArg, string(order))
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = &said, &said, []*os.File{w}
	err = cmd.Start()
	_ = w.Close()
	if err != nil {
		return Outcome{}, fmt.Errorf("start a run: %w", err)
	}
	var out Outcome
	decodeErr := json.NewDecoder(r).Decode(&out)
	if err := cmd.Wait(); err != nil {
		return Outcome{}, fmt.Errorf("%s with %d nodes: %w\n%s", o.Workload, o.Nodes, err, tail(said.Bytes()))
	}
	return out, decodeErr
}

// tail is the end of what a run said.
func tail(b []byte) []byte { return b[max(0, len(b)-4000):] }
