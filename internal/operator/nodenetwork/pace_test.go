package nodenetwork

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
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
	harness.KubeClean(t)
	fl := newScript()
	now := clock.NewFake(time.Now())
	c := start(t, Options{Fleet: fl, Clock: now})
	api := harness.KubeClient(t)
	o := create(t, "node-1", nil)
	fl.node(t, "node-1")
	for range 20 {
		harness.OK(t, api.Delete(t.Context(), o))
		o = &v1alpha1.NodeNetwork{Spec: v1alpha1.NodeNetworkSpec{InstanceID: instance, InstanceType: "m5.large"}}
		o.Name = "node-1"
		harness.OK(t, api.Create(t.Context(), o))
		harness.Eventually(t, limit, "the object is seen", func() error {
			if n := c.node("node-1"); n == nil || n.uid != o.UID {
				return errors.New("another is")
			}
			return nil
		})
		now.Advance(time.Second)
	}
	if sets := fl.of(fl.sets, "node-1"); sets > 6 {
		t.Errorf("the fleet began %d times in 20 s", sets)
	}
	until(t, "node-1", "told", func(o *v1alpha1.NodeNetwork) error {
		d, _ := find(o.Status.Conditions, v1alpha1.ConditionDegraded)
		if r, _ := find(o.Status.Conditions, v1alpha1.ConditionReady); d.Reason != reasonPaced || r.Reason != reasonPaced {
			return fmt.Errorf("%+v", o.Status.Conditions)
		}
		return nil
	})
	sets := fl.of(fl.sets, "node-1")
	harness.Eventually(t, limit, "it is worked for in the end", func() error {
		now.Advance(10 * time.Second)
		c.requeueAfter("node-1", 0) // the queue goes by the machine's clock
		if fl.of(fl.sets, "node-1") == sets {
			return errors.New("it is not")
		}
		return nil
	})
	until(t, "node-1", "no longer told", func(o *v1alpha1.NodeNetwork) error {
		if d, _ := find(o.Status.Conditions, v1alpha1.ConditionDegraded); d.Status != "False" {
			return fmt.Errorf("%+v", d)
		}
		return nil
	})
}
