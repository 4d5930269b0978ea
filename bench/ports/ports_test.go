package ports

import (
	"maps"
	"testing"
	"testing/synctest"
	"time"
)

const pods, latency, calls = 200, 400 * time.Millisecond, 8

// virtually does a run in this process.
func virtually(t *testing.T, o Order) (out Outcome) {
	t.Helper()
	o.Pods, o.Nodes, o.Latency, o.AtOnce = pods, 10, latency, calls
	synctest.Test(t, func(t *testing.T) {
		var err error
		if out, err = run(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	})
	return out
}

// Of pods that all have their nodes at once the ports are made where they are bound, in as
// few calls as the provider lets, and are there soon; none of their PodNICs
// is written more often than it has news.
func TestAllAtOnce(t *testing.T) {
	out := virtually(t, Order{})
	if out.Calls["Create"] > 6 || out.Calls["Update"] != 0 || out.TotalCalls() > 12 {
		t.Errorf("calls %v, want about 4 that make 64 ports at most, and few that look", out.Calls)
	}
	if out.Forced != latency || out.Bound > 2*latency || out.Active > 5*latency {
		t.Errorf("bound after %v, active after %v, want %v and soon after", out.Bound, out.Active, out.Forced)
	}
	if w := out.Writes["status of PodNIC"]; w != 2*pods || out.Writes["create PodNIC"] < pods {
		t.Errorf("writes %v, want one that makes a PodNIC, and two of its status", out.Writes)
	}
	if out.Heap == 0 || out.Heap > pods*64<<10 {
		t.Errorf("%d bytes for %d PodNICs", out.Heap, pods)
	}
}

// While the scheduler is at work, a pod's port waits for its node: so it takes no call of its
// own to bind it.
func TestSchedulerAtWork(t *testing.T) {
	out := virtually(t, Order{Scheduled: 50})
	if out.Calls["Update"] != 0 || out.TotalCalls() > pods/2 {
		t.Errorf("calls %v, want no port bound by itself", out.Calls)
	}
	if out.Scheduled < 3*time.Second || out.Bound > out.Scheduled+2*latency {
		t.Errorf("the last pod has its node after %v, its port after %v", out.Scheduled, out.Bound)
	}
}

// Pods for which there is no node have their ports all the same, and these are bound as fast
// as the provider lets once there is one.
func TestNodesThatComeLate(t *testing.T) {
	out := virtually(t, Order{Late: time.Minute})
	if out.Calls["Create"] > 6 || out.Calls["Update"] != pods {
		t.Errorf("calls %v, want about 4 that make 64 ports at most, and one for each that binds it", out.Calls)
	}
	if took := out.Bound - time.Minute; out.Forced != pods/calls*latency || took > out.Forced*115/100 {
		t.Errorf("bound %v after there were nodes, want %v", took, out.Forced)
	}
}

// What is compared with makes two calls for each port.
func TestNaive(t *testing.T) {
	out := virtually(t, Order{Naive: true})
	if !maps.Equal(out.Calls, map[string]int{"Create": pods, "Get": pods}) || out.Bound < pods/calls*latency {
		t.Errorf("calls %v, bound after %v", out.Calls, out.Bound)
	}
}
