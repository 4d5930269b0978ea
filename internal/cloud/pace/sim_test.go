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

	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/cloud/cloudsim"
	"github.com/berthnet/berth/internal/cloud/pace"
)

const latency = 100 * time.Millisecond

// joins are nodes that each need one new ENI: three calls, by priority.
type joins struct {
	nodes  int
	over   time.Duration // in which they come, evenly
	shared *cloudsim.Bucket
	own    map[string]cloudsim.Bucket
	also   func(ctx context.Context, api cloud.API) // runs beside
}

// result is what came of joins.
type result struct {
	median, last time.Duration // from the first join
	wait         time.Duration // the median of the time from a node's own join
	calls        int
	refused      float64 // share of calls
}

func (j joins) run(t *testing.T) (r result) {
	synctest.Test(t, func(t *testing.T) {
		sim := cloudsim.New(cloudsim.Options{Latency: latency, Shared: j.shared, Buckets: j.own})
		if err := sim.AddSubnet("subnet-1", "a", "10.0.0.0/16", 0, nil); err != nil {
			t.Fatal(err)
		}
		api := pace.Cloud(sim, pace.NewSet(pace.Options{}))
		ctx, cancel := context.WithCancel(t.Context())
		beside := make(chan struct{})
		go func() {
			defer close(beside)
			if j.also != nil {
				j.also(ctx, api)
			}
		}()
		start := time.Now()
		type done struct{ at, wait time.Duration }
		results := make(chan done, j.nodes)
		for i := range j.nodes {
			id := fmt.Sprintf("i-%d", i)
			if err := sim.AddInstance(id, "m5.xlarge", "subnet-1"); err != nil {
				t.Fatal(err)
			}
			go func() {
				time.Sleep(j.over * time.Duration(i) / time.Duration(j.nodes)) //nolint:forbidigo // bubble time
				began := time.Now()
				if err := join(ctx, api, id, cloud.Priority(8+i%8)); err != nil {
					t.Errorf("%s: %v", id, err)
				}
				results <- done{time.Since(start), time.Since(began)}
			}()
		}
		var at, waits []time.Duration
		for range j.nodes {
			d := <-results
			at, waits = append(at, d.at), append(waits, d.wait)
		}
		cancel()
		<-beside
		slices.Sort(at)
		slices.Sort(waits)
		total := sim.Total()
		r = result{
			median: at[len(at)/2], last: at[len(at)-1], wait: waits[len(waits)/2],
			calls: total.Calls - total.Refused, refused: float64(total.Refused) / float64(total.Calls),
		}
		if n := len(sim.Truth()); n != 2*j.nodes {
			t.Errorf("%d ENIs for %d nodes", n, j.nodes)
		}
	})
	return r
}

// join gives a node an ENI. What is throttled for long is asked for again.
func join(ctx context.Context, api cloud.API, id string, need cloud.Priority) error {
	eni, err := again(func() (cloud.ENI, error) {
		return api.CreateENI(cloud.WithPriority(ctx, need), cloud.CreateENI{SubnetID: "subnet-1", ClientToken: id, Addresses: 8})
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

// bound is how long calls take at least that a bucket limits.
func bound(calls int, b cloudsim.Bucket) time.Duration {
	return time.Duration((float64(calls)-b.Size)/b.Rate*float64(time.Second)) + 3*latency
}

// check holds what joins promise: the last node is done when the bucket's calls
// allow, and half of them at about half the time.
func (r result) check(t *testing.T, least time.Duration, refused float64) {
	t.Helper()
	last, median := r.last.Seconds()/least.Seconds(), r.median.Seconds()/least.Seconds()
	t.Logf("%d calls, at least %.0f s: last node after %.1f s (%.3f), median %.1f s (%.3f), %.1f %% refused",
		r.calls, least.Seconds(), r.last.Seconds(), last, r.median.Seconds(), median, 100*r.refused)
	if last > 1.1 {
		t.Errorf("the last node was done after %.3f of the least time, want at most 1.1", last)
	}
	if median > 0.6 {
		t.Errorf("the median node was done after %.3f of the least time, want about half", median)
	}
	if r.refused > refused {
		t.Errorf("%.1f %% of the calls were refused, want at most %.0f %%", 100*r.refused, 100*refused)
	}
}

// TestSharedBucket: nodes join, with one bucket for the calls of all actions.
func TestSharedBucket(t *testing.T) {
	for _, tt := range []struct {
		nodes   int
		over    time.Duration
		b       cloudsim.Bucket
		refused float64
	}{
		{100, 0, cloudsim.Bucket{Rate: 4, Size: 20}, 0.08},
		{100, time.Minute, cloudsim.Bucket{Rate: 4, Size: 20}, 0.08},
		{1000, 0, cloudsim.Bucket{Rate: 4, Size: 20}, 0.05},
		{1000, 10 * time.Minute, cloudsim.Bucket{Rate: 4, Size: 20}, 0.05},
		{100, 0, cloudsim.Bucket{Rate: 1, Size: 5}, 0.1},
		{1000, 0, cloudsim.Bucket{Rate: 10, Size: 100}, 0.05},
		{1000, 0, cloudsim.Bucket{Rate: 20, Size: 100}, 0.05},
		{1000, 0, cloudsim.Bucket{Rate: 50, Size: 100}, 0.05},
	} {
		t.Run(fmt.Sprintf("%d nodes over %v, %v/s", tt.nodes, tt.over, tt.b.Rate), func(t *testing.T) {
			joins{nodes: tt.nodes, over: tt.over, shared: &tt.b}.run(t).check(t, bound(3*tt.nodes, tt.b), tt.refused)
		})
	}
}

// documented are the buckets that EC2 documents for changes and for listings.
var documented = map[string]cloudsim.Bucket{"": {Rate: 5, Size: 50}, "Describe": {Rate: 20, Size: 100}}

// TestOwnBuckets: nodes join, with a bucket for each action.
func TestOwnBuckets(t *testing.T) {
	for _, nodes := range []int{100, 1000} {
		for _, over := range []time.Duration{0, time.Duration(nodes) * 150 * time.Millisecond} {
			t.Run(fmt.Sprintf("%d nodes over %v", nodes, over), func(t *testing.T) {
				// Finding the rate takes two seconds, however few the calls are.
				joins{nodes: nodes, over: over, own: documented}.run(t).check(t, max(over, bound(nodes, documented[""])+2*time.Second), 0.08)
			})
		}
	}
}

// TestUnhurriedJoins: nodes that come slowly wait for nothing but the replies.
func TestUnhurriedJoins(t *testing.T) {
	r := joins{nodes: 200, over: 200 * time.Second, shared: &cloudsim.Bucket{Rate: 4, Size: 20}}.run(t)
	if r.wait != 3*latency || r.refused > 0 {
		t.Errorf("the median node took %v, %.1f %% of calls were refused; want %v and none", r.wait, 100*r.refused, 3*latency)
	}
}

// TestTwoQueues: two actions that both have more to do than their buckets
// allow, which looks like one bucket, do not wait for each other.
func TestTwoQueues(t *testing.T) {
	const assigns = 500
	var took time.Duration
	j := joins{nodes: 500, own: documented, also: func(ctx context.Context, api cloud.API) {
		list, err := api.ENIs(ctx, cloud.ENIFilter{})
		if err != nil || len(list) == 0 {
			t.Errorf("%d ENIs: %v", len(list), err)
			return
		}
		start := time.Now()
		var all sync.WaitGroup
		for i := range assigns {
			all.Go(func() {
				eni := list[i%len(list)].ID
				addrs, err := again(func() ([]netip.Addr, error) { return api.AssignAddresses(ctx, eni, 1) })
				if err == nil {
					_, err = again(func() (any, error) { return nil, api.UnassignAddresses(ctx, eni, addrs) })
				}
				if err != nil && ctx.Err() == nil && cloud.ClassOf(err) != cloud.LimitReached {
					t.Error(err)
				}
			})
		}
		all.Wait()
		took = time.Since(start)
	}}
	r := j.run(t)
	r.check(t, bound(500, documented[""]), 0.08)
	t.Logf("%d assignments took %v", assigns, took)
}

// TestListingBeside: listings for repair and joins do not keep each other from
// getting on.
func TestListingBeside(t *testing.T) {
	pages := 0
	shared := cloudsim.Bucket{Rate: 4, Size: 20}
	r := joins{nodes: 200, shared: &shared, also: func(ctx context.Context, api cloud.API) {
		for ctx.Err() == nil {
			if _, err := api.ENIs(ctx, cloud.ENIFilter{VPCID: cloudsim.VPC}); err == nil {
				pages++
			}
		}
	}}.run(t)
	r.check(t, bound(r.calls, shared), 0.08)
	t.Logf("%d pages", pages)
	if least := r.calls / 20; pages < least || pages > r.calls/5 {
		t.Errorf("%d of %d calls were for the listings, want a twentieth to a fifth", pages, r.calls)
	}
}
