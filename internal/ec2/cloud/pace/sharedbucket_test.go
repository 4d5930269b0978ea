package pace_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/test/harness/check"
)

const latency = 100 * time.Millisecond

// joins simulates nodes that join and need one new ENI each, which takes three calls, by priority.
type joins struct {
	nodes  int
	over   time.Duration // time over which they join, evenly spread
	shared *cloudfake.Bucket
	own    map[string]cloudfake.Bucket
	also   func(ctx context.Context, api cloud.API) // runs concurrently

	untilBeside bool                       // end when also returns
	change      func(sim *cloudfake.Cloud) // changes the limits
	after       time.Duration              // when change runs, after the first join
}

// result describes how joins went.
type result struct {
	median, last time.Duration // from the first join
	wait         time.Duration // median, from each node's own join
	calls        int
	refused      float64 // share of refused calls
}

func (j joins) run(t *testing.T) (r result) {
	synctest.Test(t, func(t *testing.T) {
		sim := cloudfake.New(cloudfake.Options{Latency: latency, Shared: j.shared, Buckets: j.own})
		sim.State.AddSubnet("subnet-1", "a", "10.0.0.0/16", nil)
		api := pace.Cloud(inTurn{sim}, pace.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		beside := make(chan struct{})
		go func() {
			defer close(beside)
			if j.also != nil {
				j.also(ctx, api)
			}
		}()
		start := time.Now()
		if j.change != nil {
			time.AfterFunc(j.after, func() { j.change(sim) })
		}
		type done struct{ at, wait time.Duration }
		results := make(chan done, j.nodes)
		for i := range j.nodes {
			id := fmt.Sprintf("i-%d", i)
			sim.State.AddInstance(id, "m5.xlarge", "subnet-1")
			go func() {
				ctx := withTurn(ctx, 1+i)
				time.Sleep(j.over * time.Duration(i) / time.Duration(j.nodes)) //nolint:forbidigo // bubble time
				began := time.Now()
				takeTurn(ctx)
				if err := join(ctx, api, id, cloud.Priority(8+i%8)); err != nil {
					t.Errorf("node %s failed to join: %v", id, err)
				}
				results <- done{time.Since(start), time.Since(began)}
			}()
		}
		var at, waits []time.Duration
		for range j.nodes {
			d := <-results
			at, waits = append(at, d.at), append(waits, d.wait)
		}
		if j.untilBeside {
			<-beside
		}
		cancel()
		<-beside
		slices.Sort(at)
		slices.Sort(waits)
		total := sim.Front.Total()
		r = result{
			median: at[len(at)/2], last: at[len(at)-1], wait: waits[len(waits)/2],
			calls: total.Calls - total.Refused, refused: float64(total.Refused) / float64(total.Calls),
		}
		if n := len(sim.State.Truth()); n != 2*j.nodes && !j.untilBeside {
			t.Errorf("%d ENIs for %d nodes, want two each", n, j.nodes)
		}
	})
	return r
}

// inTurn serializes concurrent calls in a fixed order. The first caller determines which calls are refused and what
// the limiter learns, which must not depend on the Go scheduler of a busy machine.
type inTurn struct{ *cloudfake.Cloud }

// turn is the context key of a caller's position in that order.
type turn struct{}

func withTurn(ctx context.Context, n int) context.Context {
	return context.WithValue(ctx, turn{}, time.Duration(n)) // nanoseconds, too small to affect the results
}

func takeTurn(ctx context.Context) {
	d, _ := ctx.Value(turn{}).(time.Duration)
	time.Sleep(d) //nolint:forbidigo // bubble time
}

func (c inTurn) CreateENI(ctx context.Context, r cloud.CreateENI) (cloud.ENI, error) {
	takeTurn(ctx)
	return c.Cloud.CreateENI(ctx, r)
}

func (c inTurn) AttachENI(ctx context.Context, eniID, instanceID string, index int) (string, error) {
	takeTurn(ctx)
	return c.Cloud.AttachENI(ctx, eniID, instanceID, index)
}

func (c inTurn) SetDeleteOnTermination(ctx context.Context, eniID, attachmentID string, yes bool) error {
	takeTurn(ctx)
	return c.Cloud.SetDeleteOnTermination(ctx, eniID, attachmentID, yes)
}

func (c inTurn) AssignAddresses(ctx context.Context, eniID string, n cloud.Amount) ([]netip.Prefix, error) {
	takeTurn(ctx)
	return c.Cloud.AssignAddresses(ctx, eniID, n)
}

// join gives a node an ENI. Calls throttled for long are repeated.
func join(ctx context.Context, api cloud.API, id string, need cloud.Priority) error {
	eni, err := again(func() (cloud.ENI, error) {
		return api.CreateENI(cloud.WithPriority(ctx, need), cloud.CreateENI{SubnetID: "subnet-1", ClientToken: id, Amount: cloud.Amount{Addresses: 8}})
	})
	if err != nil {
		return err
	}
	ctx = cloud.WithPriority(ctx, cloud.Begun)
	attachment, err := again(func() (string, error) { return api.AttachENI(ctx, eni.ID, id, 1) })
	if err != nil {
		return err
	}
	_, err = again(func() (any, error) { return nil, api.SetDeleteOnTermination(ctx, eni.ID, attachment, true) })
	return err
}

func again[T any](call func() (T, error)) (T, error) {
	for {
		v, err := call()
		if cloud.ClassOf(err) != cloud.Throttled || errors.Is(err, context.Canceled) {
			return v, err
		}
	}
}

// bound is the minimum time for calls limited by a bucket.
func bound(calls int, b cloudfake.Bucket) time.Duration {
	return time.Duration((float64(calls)-b.Size)/b.Rate*float64(time.Second)) + 3*latency
}

// check verifies that the last node completes close to the minimum time that the buckets allow, half of the nodes
// in about half of it, and that few calls are refused.
func (r result) check(t *testing.T, least time.Duration, half, refused float64) {
	t.Helper()
	last, median := r.last.Seconds()/least.Seconds(), r.median.Seconds()/least.Seconds()
	t.Logf("%d calls, at least %.0f s: last node after %.1f s (%.3f), median %.1f s (%.3f), %.1f %% refused",
		r.calls, least.Seconds(), r.last.Seconds(), last, r.median.Seconds(), median, 100*r.refused)
	check.AtMost(t, last, 1.1, "completion of the last node, relative to the minimum")
	check.AtMost(t, median, half, "completion of the median node, relative to the minimum")
	check.AtMost(t, r.refused, refused, "share of refused calls (%.1f %%)", 100*r.refused)
}

// Nodes join with one bucket for the calls of all actions.
func TestSharedBucket(t *testing.T) {
	for _, tt := range []struct {
		nodes   int
		over    time.Duration
		b       cloudfake.Bucket
		refused float64
	}{
		{100, 0, cloudfake.Bucket{Rate: 4, Size: 20}, 0.08},
		{100, time.Minute, cloudfake.Bucket{Rate: 4, Size: 20}, 0.08},
		{1000, 0, cloudfake.Bucket{Rate: 4, Size: 20}, 0.05},
		{1000, 10 * time.Minute, cloudfake.Bucket{Rate: 4, Size: 20}, 0.05},
		{100, 0, cloudfake.Bucket{Rate: 1, Size: 5}, 0.1},
		{1000, 0, cloudfake.Bucket{Rate: 10, Size: 100}, 0.05},
		{1000, 0, cloudfake.Bucket{Rate: 20, Size: 100}, 0.05},
		{1000, 0, cloudfake.Bucket{Rate: 50, Size: 100}, 0.05},
	} {
		t.Run(fmt.Sprintf("%d nodes over %v, %v/s", tt.nodes, tt.over, tt.b.Rate), func(t *testing.T) {
			joins{nodes: tt.nodes, over: tt.over, shared: &tt.b}.run(t).check(t, bound(3*tt.nodes, tt.b), 0.6, tt.refused)
		})
	}
}

// documented are the buckets that EC2 documents for changes and for listings.
var documented = map[string]cloudfake.Bucket{"": {Rate: 5, Size: 50}, "Describe": {Rate: 20, Size: 100}}

// Nodes join with a bucket for each action.
func TestOwnBuckets(t *testing.T) {
	for _, nodes := range []int{100, 1000} {
		for _, over := range []time.Duration{0, time.Duration(nodes) * 150 * time.Millisecond} {
			t.Run(fmt.Sprintf("%d nodes over %v", nodes, over), func(t *testing.T) {
				// Finding the rate takes two seconds, however few calls are made.
				joins{nodes: nodes, over: over, own: documented}.run(t).check(t, max(over, bound(nodes, documented[""])+2*time.Second), 0.6, 0.08)
			})
		}
	}
}

// What the limiter learned does not get in the way when EC2 starts to limit calls differently.
func TestLimitsChange(t *testing.T) {
	slow, fast := cloudfake.Bucket{Rate: 4, Size: 20}, cloudfake.Bucket{Rate: 20, Size: 100}
	for _, tt := range []struct {
		name  string
		joins joins
		rest  time.Duration // minimum time left after the change

		refused float64 // maximum share of refused calls; 0 means 5 %
	}{
		{"shared, then apart", joins{nodes: 1000, shared: &slow, after: 2 * time.Minute, change: func(sim *cloudfake.Cloud) {
			sim.Front.SetBuckets(nil, documented)
		}}, bound(1000-500/3, documented[""]), 0},
		{"apart, then shared", joins{nodes: 1000, own: documented, after: time.Minute, change: func(sim *cloudfake.Cloud) {
			sim.Front.SetBuckets(&slow, nil)
		}}, bound(3*(1000-350), slow), 0.08},
		{"more", joins{nodes: 1000, shared: &slow, after: time.Minute, change: func(sim *cloudfake.Cloud) {
			sim.Front.SetBuckets(&fast, nil)
		}}, bound(3000-260, fast), 0},
		{"less", joins{nodes: 1000, shared: &fast, after: time.Minute, change: func(sim *cloudfake.Cloud) {
			sim.Front.SetBuckets(&slow, nil)
		}}, bound(3000-1300, slow), 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := tt.joins.run(t)
			rest := r.last - tt.joins.after
			t.Logf("%v after the change, at least %v (%.2f), %.1f %% refused", rest, tt.rest, rest.Seconds()/tt.rest.Seconds(), 100*r.refused)
			if rest > tt.rest*14/10 || r.refused > max(0.05, tt.refused) {
				t.Errorf("%v after the change, want at most 1.4 times %v; %.1f %% refused", rest, tt.rest, 100*r.refused)
			}
		})
	}
}

// Nodes that join slowly wait only for replies.
func TestSlowJoins(t *testing.T) {
	r := joins{nodes: 200, over: 200 * time.Second, shared: &cloudfake.Bucket{Rate: 4, Size: 20}}.run(t)
	if r.wait.Round(time.Millisecond) != 3*latency || r.refused > 0 {
		t.Errorf("median node took %v with %.1f %% of calls refused, want %v with none refused", r.wait, 100*r.refused, 3*latency)
	}
}

// Two actions that both exceed their own buckets, which looks like one shared bucket, do not wait for each other.
func TestTwoQueues(t *testing.T) {
	for _, tt := range []struct {
		nodes, assigns int
		own            map[string]cloudfake.Bucket
	}{
		{500, 500, map[string]cloudfake.Bucket{"": {Rate: 5, Size: 50}}},
		{200, 1500, map[string]cloudfake.Bucket{"": {Rate: 2, Size: 20}, pace.Assign.Action: {Rate: 20, Size: 100}}},
		{1000, 300, map[string]cloudfake.Bucket{"": {Rate: 10, Size: 50}, pace.Assign.Action: {Rate: 2, Size: 50}}},
	} {
		t.Run(fmt.Sprintf("%d nodes, %d assignments", tt.nodes, tt.assigns), func(t *testing.T) {
			var took time.Duration
			j := joins{nodes: tt.nodes, own: tt.own, untilBeside: true, also: func(ctx context.Context, api cloud.API) {
				took = assign(ctx, t, api, tt.assigns)
			}}
			j.run(t).check(t, bound(tt.nodes, tt.own[""])+2*time.Second, 0.7, 0.08)
			b, ok := tt.own[pace.Assign.Action]
			if !ok {
				b = tt.own[""]
			}
			least := bound(tt.assigns, b)
			t.Logf("%d assignments took %v, at least %v", tt.assigns, took, least)
			check.AtMost(t, took, least*11/10+2*time.Second, "time for %d assignments", tt.assigns)
		})
	}
}

// assign requests n addresses concurrently, for an ENI without an instance.
func assign(ctx context.Context, t *testing.T, api cloud.API, n int) time.Duration {
	e, err := api.CreateENI(ctx, cloud.CreateENI{SubnetID: "subnet-1"})
	if err != nil {
		t.Error(err)
		return 0
	}
	start := time.Now()
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			ctx := withTurn(ctx, 1_000_000+i)
			takeTurn(ctx)
			if _, err := again(func() ([]netip.Prefix, error) { return api.AssignAddresses(ctx, e.ID, cloud.Amount{Addresses: 1}) }); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	return time.Since(start)
}

// Listings for repair and joins do not starve each other.
func TestListingsDuringJoins(t *testing.T) {
	pages := 0
	shared := cloudfake.Bucket{Rate: 4, Size: 20}
	r := joins{nodes: 200, shared: &shared, also: func(ctx context.Context, api cloud.API) {
		for ctx.Err() == nil {
			if _, err := api.ENIs(ctx, cloud.ENIFilter{VPCID: cloudfake.VPC}); err == nil {
				pages++
			}
		}
	}}.run(t)
	r.check(t, bound(r.calls, shared), 0.6, 0.08)
	t.Logf("%d pages", pages)
	if least := r.calls / 20; pages < least || pages > r.calls/5 {
		t.Errorf("%d of %d calls were listings, want a twentieth to a fifth", pages, r.calls)
	}
}
