package nodeenis

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ec2/eni/fleet"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
	"github.com/berthnet/berth/test/harness/sourcetest"
)

// A whole life with the real fleet, under the generated role: addresses come,
// follow use, go back by the handshake, and the object goes with its Node.
func TestWithFleet(t *testing.T) {
	harness.KubeClean(t)
	sim := cloudfake.New(cloudfake.Options{Latency: 5 * time.Millisecond})
	sim.State.AddSubnet("subnet-1", "zone-a", "10.0.0.0/16", nil)
	sim.State.SetFree("subnet-1", 1000)
	sim.State.AddInstance(instance, "m5.large", "subnet-1")
	f, err := fleet.New(fleet.Config{
		Cluster: "test", Cloud: pace.Cloud(sim, pace.Options{}),
		Timing: eni.Timing{ShrinkDelay: 500 * time.Millisecond, Settle: 2 * time.Second, ListingInterval: 2 * time.Second},
		Logger: sourcetest.Logger(t.Output()),
	})
	harness.OK(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the fleet ended with %v", err)
		}
	})
	op := start(t, Options{Fleet: f, Settle: time.Second})
	create(t, "node-1", nil)
	until(t, "node-1", "8 addresses", count(8))
	o := until(t, "node-1", "ready", controllers.If(func(o *v1alpha1.NodeNetwork) bool {
		return meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ConditionReady) && o.Status.ENI.Available == 8 && o.Status.ENI.Count == 1
	}))
	// Four of them are used: 12.
	report(t, "node-1", v1alpha1.IPAMStatus{Used: used(keys(o.Spec.IPAM.Available)[:4]...), InstanceID: instance})
	until(t, "node-1", "12 addresses", count(12))
	// None is: 8 again, by the handshake.
	report(t, "node-1", v1alpha1.IPAMStatus{InstanceID: instance})
	o = until(t, "node-1", "4 candidates", func(o *v1alpha1.NodeNetwork) error {
		if n := len(o.Spec.IPAM.Releasing); n != 4 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	report(t, "node-1", v1alpha1.IPAMStatus{InstanceID: instance, Released: o.Spec.IPAM.Releasing})
	until(t, "node-1", "8 addresses again", count(8))
	until(t, "node-1", "nothing on its way back", releasing())
	// Its ENI is detached by somebody, and the daemon misses the link: EC2 is asked at once.
	o = until(t, "node-1", "8 addresses", count(8))
	address := keys(o.Spec.IPAM.Available)[0]
	id := o.Spec.IPAM.Available[address].Resource
	inUse := map[string]v1alpha1.UsedAddress{address: {UID: "uid", Resource: id}}
	report(t, "node-1", v1alpha1.IPAMStatus{Used: inUse, InstanceID: instance})
	for _, e := range sim.State.Truth() {
		if e.ID == id {
			harness.OK(t, sim.DetachENI(ctx, e.Attachment.ID))
		}
	}
	report(t, "node-1", v1alpha1.IPAMStatus{Used: inUse, InstanceID: instance, MissingLinks: []string{id}})
	until(t, "node-1", "the missing link is told", func(o *v1alpha1.NodeNetwork) error {
		if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionDegraded); c == nil || c.Reason != v1alpha1.ReasonLinkMissing {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	harness.Eventually(t, controllers.Limit, "the ENI of a running pod is attached again", func() error {
		for _, e := range sim.State.Truth() {
			if e.ID == id && e.Attachment != nil {
				return nil
			}
		}
		return errors.New("it is not")
	})
	harness.Eventually(t, controllers.Limit, "totals", func() error {
		if totals := op.Totals(); totals.Nodes != 1 || totals.Available < 8 {
			return fmt.Errorf("%+v", totals)
		}
		return nil
	})
}

func count(n int) func(*v1alpha1.NodeNetwork) error {
	return func(o *v1alpha1.NodeNetwork) error {
		if have := len(o.Spec.IPAM.Available); have != n {
			return fmt.Errorf("%d addresses, want %d; %+v", have, n, o.Status.Conditions)
		}
		return nil
	}
}
