package pace_test

import (
	"context"
	"fmt"
	"slices"
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
		if cloud.ClassOf(err) != cloud.Throttled {
			return v, err
		}
	}
}

// bound is how long calls take at least that a bucket limits.
func bound(calls int, b cloudsim.Bucket) time.Duration {
	return time.Duration((float64(calls)-b.Size)/b.Rate*float64(time.Second)) + 3*latency
}

// TestSharedBucket: nodes join at once, with one bucket for the calls of all actions.
func TestSharedBucket(t *testing.T) {
	for _, tt := range []struct {
		nodes int
		b     cloudsim.Bucket
	}{
		{100, cloudsim.Bucket{Rate: 4, Size: 20}},
		{1000, cloudsim.Bucket{Rate: 4, Size: 20}},
		{1000, cloudsim.Bucket{Rate: 20, Size: 100}},
		{1000, cloudsim.Bucket{Rate: 50, Size: 100}},
		{100, cloudsim.Bucket{Rate: 1, Size: 5}},
	} {
		t.Run(fmt.Sprintf("%d nodes, %v/s", tt.nodes, tt.b.Rate), func(t *testing.T) {
			r := joins{nodes: tt.nodes, shared: &tt.b}.run(t)
			least := bound(3*tt.nodes, tt.b)
			t.Logf("last %v = %.3f of the bound, median %v = %.3f, %.1f %% refused", r.last, r.last.Seconds()/least.Seconds(), r.median, r.median.Seconds()/least.Seconds(), 100*r.refused)
		})
	}
}
