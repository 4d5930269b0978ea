package ports

import (
	"maps"
	"testing"
	"testing/synctest"
	"time"
)

const pods, latency, calls = 200, 400 * time.Millisecond, 8

// runInVirtualTime executes a run in this process.
func runInVirtualTime(t *testing.T, o Order) (out Outcome) {
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

// If all pods are scheduled at once, the controller creates ports already bound, in full batches, and
// writes each PodNIC status twice.
func TestAllAtOnce(t *testing.T) {
	out := runInVirtualTime(t, Order{})
	if out.Calls["Create"] > 6 || out.Calls["Update"] != 0 || out.TotalCalls() > 12 {
		t.Errorf("calls %v, want about 4 creates of up to 64 ports, and few lookups", out.Calls)
	}
	if out.MinBound != latency || out.Bound > 2*latency || out.Active > 5*latency {
		t.Errorf("bound after %v, active after %v, want bound after %v and active soon after", out.Bound, out.Active, out.MinBound)
	}
	if w := out.Writes["status of PodNIC"]; w != 2*pods || out.Writes["create PodNIC"] < pods {
		t.Errorf("writes %v, want one create and two status writes per PodNIC", out.Writes)
	}
	if out.Heap == 0 || out.Heap > pods*64<<10 {
		t.Errorf("%d bytes for %d PodNICs", out.Heap, pods)
	}
}

// If pods are scheduled one after the other, the controller creates a port once its pod has a node, and
// needs no separate bind call.
func TestSchedulerAtWork(t *testing.T) {
	out := runInVirtualTime(t, Order{Scheduled: 50})
	if out.Calls["Update"] != 0 || out.TotalCalls() > pods/2 {
		t.Errorf("calls %v, want no separate bind calls", out.Calls)
	}
	if out.Scheduled < 3*time.Second || out.Bound > out.Scheduled+2*latency {
		t.Errorf("last pod scheduled after %v, last port bound after %v", out.Scheduled, out.Bound)
	}
}

// Unscheduled pods get ports; these are bound at the provider's rate once the pods are scheduled.
func TestNodesThatComeLate(t *testing.T) {
	out := runInVirtualTime(t, Order{Late: time.Minute})
	if out.Calls["Create"] > 6 || out.Calls["Update"] != pods {
		t.Errorf("calls %v, want about 4 creates of up to 64 ports, and one bind call per port", out.Calls)
	}
	if took := out.Bound - time.Minute; out.MinBound != pods/calls*latency || took > out.MinBound*115/100 {
		t.Errorf("bound %v after the first pod was scheduled, want %v", took, out.MinBound)
	}
}

// The naive controller makes two calls per port.
func TestNaive(t *testing.T) {
	out := runInVirtualTime(t, Order{Naive: true})
	if !maps.Equal(out.Calls, map[string]int{"Create": pods, "Get": pods}) || out.Bound < pods/calls*latency {
		t.Errorf("calls %v, bound after %v", out.Calls, out.Bound)
	}
}
