package branches

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/bench/scale"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
)

// virtually does a run in this process.
func virtually(t *testing.T, o Order) (out Outcome) {
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

// Pods of a node that come at once wait for two calls each and no longer; what else is called for
// them comes after.
func TestBurst(t *testing.T) {
	const pods = 50
	out := virtually(t, Order{Pods: pods, Limits: scale.Limits{Delay: 100 * time.Millisecond, Shared: &cloudfake.Bucket{Rate: 4, Size: 20}}})
	if out.Forced < 20*time.Second || out.Bound < out.Forced || out.Bound > out.Forced*5/4 {
		t.Errorf("bound after %v, want %v or little more", out.Bound, out.Forced)
	}
	if out.Calls[pace.CreateENI.Action] != pods || out.Calls[pace.AssociateBranch.Action] != pods {
		t.Errorf("calls %v, want one of each kind for each pod", out.Calls)
	}
}
