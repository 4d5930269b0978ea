package scale

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
)

func TestBound(t *testing.T) {
	shared := &cloudfake.Bucket{Rate: 4, Size: 20}
	for _, c := range []struct {
		name   string
		limits Limits
		calls  map[string]int
		want   time.Duration
	}{
		{"no limit", Limits{Delay: time.Second}, map[string]int{"CreateNetworkInterface": 1000}, time.Second},
		{"within the burst", Limits{Shared: shared}, map[string]int{"DescribeSubnets": 20}, 0},
		{"all actions together", Limits{Shared: shared}, map[string]int{"CreateNetworkInterface": 200, "DescribeSubnets": 100}, 70 * time.Second},
		{"the slowest action", Limits{Published: true}, map[string]int{"CreateNetworkInterface": 100, "DescribeSubnets": 300, "AssignPrivateIpAddresses": 100}, 10 * time.Second},
	} {
		if got := c.limits.MinDuration(c.calls); got != c.want {
			t.Errorf("%s: MinDuration(%v) = %v, want %v", c.name, c.calls, got, c.want)
		}
	}
}

// Runs each workload at a small scale, and checks properties on which the bench relies.
func TestWorkloads(t *testing.T) {
	tight := Limits{Delay: 100 * time.Millisecond, Shared: &cloudfake.Bucket{Rate: 4, Size: 20}}
	for _, c := range []struct {
		order Order
		holds func(Outcome) bool
	}{
		{Order{Workload: Join, Nodes: 20}, func(o Outcome) bool {
			return o.CPU > 0 && o.Bytes > 0 && o.Calls["AssignPrivateIpAddresses"] == 20
		}},
		{Order{Workload: Event, Nodes: 20}, func(o Outcome) bool {
			return o.CPU > 0 && o.Events >= eventsOfRound && o.Calls["AssignPrivateIpAddresses"] == o.Events
		}},
		{Order{Workload: Fill, Nodes: 20, Limits: tight}, func(o Outcome) bool {
			return o.ENIs == 20 && o.Last >= o.Bound && o.Median < o.Last
		}},
		{Order{Workload: Fill, Nodes: 100, Limits: tight}, func(o Outcome) bool { // setting DeleteOnTermination has lower priority
			return o.Last < 56*time.Second && o.Exposed < 90*time.Second
		}},
		{Order{Workload: Fill, Nodes: 600, Limits: tight}, func(o Outcome) bool { // although some node lacks addresses at all times
			return o.Last > 6*time.Minute && o.Exposed < 150*time.Second
		}},
		{Order{Workload: Fill, Nodes: 20, Limits: Limits{Shared: tight.Shared, Foreign: 4}}, func(o Outcome) bool { // beside another client
			return o.ENIs == 20 && o.Last >= 2*time.Second && o.Bound > tight.MinDuration(o.Calls)
		}},
		{Order{Workload: Subnets, Nodes: 100, Limits: tight}, func(o Outcome) bool {
			return o.ENIs == 102 && o.FailedCreates == 0 && o.Last >= o.Bound
		}},
		{Order{Workload: ThrottledCreate, Nodes: 1, Limits: Limits{Delay: time.Second}}, func(o Outcome) bool { return o.ENIs == 1 && o.Last < 8*time.Second }},
		{Order{Workload: ThrottledAssign, Nodes: 1, Limits: Limits{Delay: time.Second}}, func(o Outcome) bool { return o.ENIs == 0 && o.Last < 7*time.Second }},
		{Order{Workload: Peers, Nodes: 2, Limits: tight}, func(o Outcome) bool {
			return o.ENIs == 2*callsOfPeer && o.Last >= o.Bound && o.Last < 2*o.Bound && o.Median < o.Last && o.Throttled < callsOfPeer
		}},
		{Order{Workload: NodeStart, Nodes: 50, Limits: Limits{Delay: 100 * time.Millisecond, Published: true}}, func(o Outcome) bool {
			return o.Throttled == 0 && o.Last < 2*time.Second
		}},
		{Order{Workload: NodeStart, Nodes: 200, Limits: Limits{Delay: 100 * time.Millisecond, Published: true}}, func(o Outcome) bool {
			return o.Daemons.First < 3*o.Bound/2 && o.Last < 3*o.Bound && o.Daemons.Worst < 3*o.Median
		}},
		{Order{Workload: NodeRest, Nodes: 200, Limits: Limits{Delay: 100 * time.Millisecond, Published: true, Part: 0.05}}, func(o Outcome) bool {
			return o.TotalCalls() > 1000 && 20*o.Throttled < o.TotalCalls() // fixed intervals need 1.7 times as many calls as the limits allow
		}},
		{Order{Workload: NodeReplace, Nodes: 20, Limits: Limits{Delay: 100 * time.Millisecond, Published: true}}, func(o Outcome) bool {
			return o.Throttled == 0 && o.Daemons.Worst < 2*time.Second
		}},
		{Order{Workload: NodeOutage, Nodes: 20, Limits: Limits{Delay: 100 * time.Millisecond, Published: true}}, func(o Outcome) bool {
			return o.Last < 10*time.Second // after EC2's return
		}},
		{Order{Workload: NodeChurn, Nodes: 20, Limits: Limits{Delay: 100 * time.Millisecond, Published: true}}, func(o Outcome) bool {
			return o.Throttled == 0 && o.Daemons.Worst < 2*time.Second
		}},
		{Order{Workload: Memory, Nodes: 200}, func(o Outcome) bool { return o.Heap > 0 && o.Heap < 64<<20 }},
	} {
		t.Run(string(c.order.Workload), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				out, err := workloads[c.order.Workload](t.Context(), c.order)
				if err != nil {
					t.Fatal(err)
				}
				if !c.holds(out) {
					t.Errorf("unexpected outcome %+v", out)
				}
			})
		})
	}
}

// An operator that takes over observes all nodes, serves those with waiting pods, and writes nothing else until a template
// concerns all nodes.
func TestTakeover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes = 40
		out, err := runTakeover(t.Context(), TakeoverOrder{Nodes: nodes, Page: 100 * time.Millisecond, Template: true})
		if err != nil {
			t.Fatal(err)
		}
		if out.First == 0 || out.Last < out.First || out.Full == 0 || out.Pages != 1 || out.Listing != 100*time.Millisecond {
			t.Errorf("unexpected outcome %+v", out)
		}
		if got, want := out.Writes["status of NodeNetwork"], nodes+waitingNodes; got > want || out.Writes["patch NodeNetwork"] != waitingNodes {
			t.Errorf("writes %v, want at most %d of the status, and %d of spec.ipam", out.Writes, want, waitingNodes)
		}
	})
}
