package fleet

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/test/harness/check"
)

// account is a cloud with an ENI that belongs to no node of the test.
type account struct{ *cloudfake.Cloud }

const ofOthers = "eni-of-others"

func (a account) AssignAddresses(ctx context.Context, id string, n cloud.Amount) ([]netip.Prefix, error) {
	if id == ofOthers {
		return nil, nil
	}
	return a.Cloud.AssignAddresses(ctx, id, n)
}

// A move of addresses to another ENI waits behind what other nodes need. If pods come to wait
// meanwhile, the move is recalled, the pods get addresses with their own priority, and the move is made
// once the node has been at rest again.
func TestMoveIsGivenUpForPods(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		ec2 := pace.Cloud(account{w.cloud}, pace.Options{Ceilings: map[string]pace.Limit{pace.Assign.Action: {Rate: 0.1, Burst: 100}}})
		p := w.operator(ec2)
		n := p.set(t, w.objects[0], eni.Settings{InstanceType: "m5.xlarge", Policy: ipam.Policy{WarmIP: 1, MinimumIP: 3}})
		n.run(16)
		pass(minute)
		n.endOn(0)
		n.run(0)
		pass(5 * minute)
		layout := func() (primary, second int) {
			for _, e := range w.cloud.State.Truth() {
				if e.Attachment.DeviceIndex == 0 {
					primary = len(e.Addresses)
				} else {
					second = len(e.Addresses)
				}
			}
			return primary, second
		}

		ctx, quiet := context.WithCancel(cloud.WithPriority(t.Context(), 2))
		var others sync.WaitGroup
		for range 20 { // more than the burst lets through, all of them worse off
			others.Go(func() {
				for ctx.Err() == nil {
					_, _ = ec2.AssignAddresses(ctx, ofOthers, cloud.Amount{Addresses: 1})
				}
			})
		}
		n.endOn(1)
		n.run(0)
		pass(80 * time.Second)
		before := w.cloud.Front.Count("AssignAddresses")
		if primary, second := layout(); primary != 1 || second != 2 {
			t.Fatalf("%d and %d addresses, want 1 and 2: the move waits", primary, second)
		}
		n.run(8)
		pass(25 * time.Second) // at one call in ten seconds
		n.wantPods(t, 8)
		check.Equal(t, w.cloud.Front.Count("AssignAddresses")-before, 1, "calls")
		if s := n.last(); s.LastError != "" {
			t.Errorf("status: %+v", s)
		}
		quiet()
		others.Wait()
		n.endOn(0)
		n.endOn(1)
		n.run(0)
		pass(10 * minute)
		if primary, second := layout(); primary != 3 || second != 0 {
			t.Errorf("at rest: %d and %d addresses", primary, second)
		}
	})
}

// endOn ends the pods on the ENI at a device index.
func (o *object) endOn(index int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range o.inv.ENIs {
		for _, a := range e.Addresses {
			if e.DeviceIndex == index {
				delete(o.used, a)
			}
		}
	}
}
