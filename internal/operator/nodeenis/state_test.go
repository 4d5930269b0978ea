package nodeenis

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/test/harness/parts"
)

// A timed part that is not listed would never be handled.
func TestEveryTimedPartIsAmongTheTimers(t *testing.T) {
	parts.Listed[state](t, 4, (&state{}).timers())
}

// When there is something to do next, seen by a reconciliation that began at second 10.
func TestWake(t *testing.T) {
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	suppressed := func(until ...int64) ownership {
		w := ownership{suppressed: map[netip.Prefix]time.Time{}}
		for i, s := range until {
			w.suppressed[netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 32)] = at(s)
		}
		return w
	}
	for _, c := range []struct {
		name  string
		state *state
		want  int64 // the second; 0: only when something changes
	}{
		{"nothing", &state{}, 0},
		{"what was due before it began", &state{liveness: liveness{deleteAt: at(10)}, eligibility: eligibility{askAt: at(9)}}, 0},
		{"a proof that is asked for again", &state{eligibility: eligibility{askAt: at(15)}}, 15},
		{"a recreated object", &state{eligibility: eligibility{heldUntil: at(12)}}, 12},
		{"the first of what is suppressed", &state{ownership: suppressed(9, 70, 40)}, 40},
		{"a node that is gone", &state{liveness: liveness{deleteAt: at(60)}}, 60},
		{"a request that failed", &state{writes: writes{retry: backoff{Backoff: retry.Backoff{Until: at(11)}}}}, 11},
		{"news of the status", &state{writes: writes{newsAt: at(13)}}, 13},
		{"the first of all", &state{writes: writes{newsAt: at(14)}, liveness: liveness{deleteAt: at(12)}, ownership: suppressed(13)}, 12},
	} {
		want := time.Time{}
		if c.want > 0 {
			want = at(c.want)
		}
		if got := c.state.wake(at(10)); !got.Equal(want) {
			t.Errorf("%s: %v, want %v", c.name, got, want)
		}
	}
}

// A reconciliation may have looked at a part before it became due: then the node is reconciled
// again. What was due before the reconciliation began was handled.
func TestDueMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := alone(newScript())
		queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		defer queue.ShutDown()
		if err := n.c.queue.Source().Start(t.Context(), queue); err != nil {
			t.Fatal(err)
		}
		began := n.c.now()
		n.state.liveness.deleteAt = began.Add(time.Second)
		time.Sleep(2 * time.Second) //nolint:forbidigo // virtual time
		n.schedule(n.c.now())
		if queue.Len() != 0 {
			t.Error("reconciled again for what was due before")
		}
		n.schedule(began)
		if queue.Len() != 1 {
			t.Error("not reconciled for what became due meanwhile")
		}
	})
}
