// Package scale runs Berth's ENI allocator (internal/ec2/eni/fleet behind internal/ec2/cloud/pace) for up
// to ten thousand nodes against an EC2 in memory, in virtual time, and measures
// what it costs and how long it takes. There is no HTTP and no Kubernetes in it.
//
// A program that uses the package gives Job to bubble.Child.
package scale

import (
	"context"
	"fmt"
	"time"

	"github.com/berthnet/berth/bench/bubble"
)

// Order is one run.
type Order struct {
	Workload Workload
	Nodes    int
	Limits   Limits        // of the EC2 side
	Join     time.Duration // from one node's arrival to the next; 0: all at once
	Calm     bool          // without the throttling that the workload is named for
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

// Job is this kind of run.
var Job = bubble.Job[Order, Outcome]{Name: "scale", Do: func(ctx context.Context, o Order) (Outcome, error) {
	work, ok := workloads[o.Workload]
	if !ok {
		return Outcome{}, fmt.Errorf("workload %q: want one of those of this package", o.Workload)
	}
	return work(ctx, o)
}}
