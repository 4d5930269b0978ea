package nodeenis

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/test/harness"
)

func TestObjectsThatFollowEachOther(t *testing.T) {
	now := time.Date(2026, 11, 22, 7, 0, 0, 0, time.UTC)
	var l recreation
	for i, tt := range []struct {
		after, wait time.Duration // since the last was made, until it is worked for
	}{
		{0, 0},
		{time.Second, 0}, // as after a person deleted one
		{time.Second, 2 * time.Second},
		{time.Second, 4 * time.Second},
		{time.Second, 8 * time.Second},
		{time.Minute, 16 * time.Second},
		{time.Minute, 32 * time.Second},
		{time.Minute, time.Minute},
		{time.Minute, time.Minute},
		{steady, 0},
		{time.Second, 0},
		{time.Second, 2 * time.Second},
	} {
		now = now.Add(tt.after)
		uid := types.UID(fmt.Sprint(i))
		l = l.next(uid, now)
		if got := l.from.Sub(now); got != tt.wait {
			t.Errorf("object %d waits %v, want %v", i, got, tt.wait)
		}
		if again := l.next(uid, now.Add(time.Second)); again != l {
			t.Errorf("object %d, looked at again: %+v, want %+v", i, again, l)
		}
	}
}

// A node that deletes its object and makes it again, over and over, has the
// fleet begin anew a few times only, and the object says why it has no addresses.
func TestObjectMadeAgainTooOften(t *testing.T) {
	now := clock.NewFake(time.Now())
	fl, _ := setUp(t, Options{Clock: now})
	api := harness.KubeClient(t)
	o := get(t, "node-1")
	for range 20 {
		harness.OK(t, api.Delete(t.Context(), o))
		o = objectOf("node-1", instance)
		harness.OK(t, api.Create(t.Context(), o))
		await(t, "the object is seen", func() bool {
			n := fl.Controller.node("node-1")
			return n != nil && n.uid == o.UID
		})
		now.Advance(time.Second)
	}
	sets := fl.called("Set")
	if sets > 6 {
		t.Errorf("the fleet began %d times in 20 s", sets)
	}
	awaitDegraded(t, "node-1", reasonPaced)
	await(t, "it is worked for in the end", func() bool {
		now.Advance(10 * time.Second)
		fl.queue.Add("node-1") // the queue goes by the machine's clock
		return fl.called("Set") > sets
	})
	until(t, "node-1", "no longer told", degraded(reasonAsExpected))
}
