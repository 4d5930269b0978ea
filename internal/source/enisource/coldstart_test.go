package enisource

import (
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipam"
)

// A node that starts with nothing asks EC2 four times before its first pods can
// have addresses: for the ENIs on it, for the subnet, for what its type allows,
// and for addresses. Of itself it knows all that matters from the metadata service.
// Which ENIs of it are detached matters to new ENIs only, and is asked last.
func TestColdStartIsFourCalls(t *testing.T) {
	bubble(t, "t3.small", ipam.DefaultAWS(), func(t *testing.T, n *node) {
		n.tune = func(c *eni.Config) { c.InstanceType = "t3.small" }
		n.start()
		n.settle(time.Second)
		n.wantLayout("3")
		calls := n.cloud.Front.Calls()
		if len(calls) != 5 || calls[3].Op != "AssignAddresses" || n.cloud.Front.Count("ENIs") != 2 || n.cloud.Front.Count("Instance") != 0 {
			t.Errorf("%d calls, want the fourth to assign addresses: %+v", len(calls), calls)
		}
		n.add(0, time.Second)
		n.check()
	})
}

// A listing without the primary ENI, as of an instance that just came or does not
// exist, is not believed: the instance is asked for.
func TestListingWithoutThePrimaryIsNotBelieved(t *testing.T) {
	bubble(t, "t3.small", ipam.DefaultAWS(), func(t *testing.T, n *node) {
		n.tune = func(c *eni.Config) { c.InstanceType = "t3.small" }
		n.cloud.State.Terminate(instance)
		n.start()
		n.settle(time.Minute)
		if err := n.Ready(); err == nil || n.cloud.Front.Count("Instance") == 0 || n.cloud.Front.Count(changes...) > 0 {
			t.Errorf("ready: %v, calls %+v", err, n.cloud.Front.Calls())
		}
		n.cloud.State.AddInstance(instance, "t3.small", "subnet-1")
		n.settle(time.Minute)
		n.wantLayout("3")
	})
}

// An instance that was stopped may run again as another type: what its last
// inventory says of limits is not what it has now.
func TestAnotherTypeAfterAStop(t *testing.T) {
	bubble(t, "t3.small", ipam.DefaultAWS(), func(t *testing.T, n *node) {
		for _, itype := range []string{"t3.small", "m5.xlarge"} {
			n.tune = func(c *eni.Config) { c.InstanceType = itype }
			n.start()
			n.settle(time.Minute)
			n.kill()
			if inv := n.store.inv; inv.InstanceType != itype || inv.Limits != limitsOf(t, n, itype) {
				t.Errorf("%s: %s with %+v", itype, inv.InstanceType, inv.Limits)
			}
		}
		if asked := n.cloud.Front.Count("Instance"); asked > 0 {
			t.Errorf("the instance was described %d times", asked)
		}
	})
}

func limitsOf(t *testing.T, n *node, itype string) cloud.Limits {
	t.Helper()
	l, err := n.cloud.Limits(t.Context(), itype)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
