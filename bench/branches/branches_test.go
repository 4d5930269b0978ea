package branches

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/bench/scale"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
)

// runInVirtualTime executes a run in this process.
func runInVirtualTime(t *testing.T, o Order) (out Outcome) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var err error
		if out, err = run(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	})
	t.Logf("%+v", out)
	return out
}

// Pods that are created at once on one node wait for two calls each; other calls come later.
func TestBurst(t *testing.T) {
	const pods = 50
	out := runInVirtualTime(t, Order{Pods: pods, Limits: scale.Limits{Delay: 100 * time.Millisecond, Shared: &cloudfake.Bucket{Rate: 4, Size: 20}}})
	if out.MinBound < 20*time.Second || out.Bound < out.MinBound || out.Bound > out.MinBound*5/4 {
		t.Errorf("bound after %v, want %v to 25 %% more", out.Bound, out.MinBound)
	}
	if out.Calls[pace.CreateENI.Action] != pods || out.Calls[pace.AssociateBranch.Action] != pods {
		t.Errorf("calls %v, want one of each kind per pod", out.Calls)
	}
}
