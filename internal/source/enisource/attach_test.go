package enisource

import (
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/test/harness/check"
)

// An ENI that EC2 refuses to attach is given up after a few tries: it is deleted, and another is
// created. If that fails too, no ENI is created for a while.
func TestENIThatCannotBeAttached(t *testing.T) {
	refused := func(class cloud.Class) error {
		return &cloud.Error{Class: class, Op: "AttachNetworkInterface", Message: "not this one"}
	}
	for name, class := range map[string]cloud.Class{"bug": cloud.Bug, "conflict": cloud.Conflict} {
		t.Run(name, func(t *testing.T) {
			bubble(t, "t3.small", ipam.Policy{WarmIP: 1, MinimumIP: 1}, func(t *testing.T, n *node) {
				n.start()
				n.settle(time.Second)
				n.cloud.Front.Inject(cloudfake.Fault{Op: "AttachENI", ENI: "eni-00000000000000002", Err: refused(class)})
				for i := range 5 {
					n.add(i, time.Minute) // the fourth needs an ENI
				}
				n.settle(time.Minute)
				n.wantLayout("3,3")
				check.Equal(t, n.cloud.Front.Count("CreateENI"), 2, "ENIs made")
				n.check()

				n.cloud.Front.ClearFaults()
				n.cloud.Front.ResetCalls()
				n.cloud.Front.Inject(cloudfake.Fault{Op: "AttachENI", Err: refused(class)})
				_, err := n.try(5, time.Hour)
				if err == nil {
					_, err = n.try(6, time.Hour)
				}
				if why := n.supply.LastError(); !strings.Contains(why, "not this one") {
					t.Errorf("the node says %q", why)
				}
				if got := n.cloud.Front.Count("CreateENI"); err == nil || got < 2 || got > 10 {
					t.Errorf("within an hour %d ENIs made that cannot be attached; the pod: %v", got, err)
				}
				n.cloud.Front.ClearFaults()
				n.add(7, time.Hour)
				n.settle(5 * time.Minute)
				n.check()
			})
		})
	}
}

// An ENI whose attachment succeeded although its reply was lost and listings trailed is not given up,
// and no other is created in its place. The times of lookups and tries are random; rounds in which a
// lookup shows the attachment before the third try do not count.
func TestENIThatWasAttachedAfterAll(t *testing.T) {
	for range 10 {
		if lostAttach(t) >= 4 {
			return
		}
	}
	t.Fatal("in no round was attaching tried four times")
}

// lostAttach plays one such round, and returns how often the attachment was tried.
func lostAttach(t *testing.T) (tried int) {
	bubble(t, "m5.xlarge", ipam.Policy{WarmIP: 1, MinimumIP: 1}, func(t *testing.T, n *node) {
		n.start()
		n.settle(time.Second)
		for i := range 13 {
			n.add(i, time.Minute) // the fifteenth needs an ENI
		}
		n.cloud.State.SetLag(15 * time.Second)
		n.cloud.Front.Inject(cloudfake.Fault{Op: "AttachENI", ENI: "eni-00000000000000002", Times: 1, After: true, Err: cloudfake.Err(cloud.Transient, "")})
		n.burst(13, 16, 2*time.Minute)
		n.settle(2 * time.Minute)
		n.cloud.State.SetLag(0)
		n.settle(2 * time.Minute)
		tried = n.cloud.Front.Count("AttachENI")
		if made, deleted := n.cloud.Front.Count("CreateENI"), n.cloud.Front.Count("DeleteENI"); made != 1 || deleted > 0 {
			t.Errorf("%d ENIs made, deleting tried %d times, want one and none", made, deleted)
		}
		n.check()
	})
	return tried
}

// A node that lost its files, with the intent, uses the ENI that it left detached before it creates
// another, although detached ENIs are listed last at a start.
func TestDetachedENIOfALostNodeIsTaken(t *testing.T) {
	bubble(t, "t3.small", ipam.Policy{WarmIP: 1, MinimumIP: 1}, func(t *testing.T, n *node) {
		n.start()
		n.settle(time.Second)
		n.cloud.Front.Inject(cloudfake.Fault{Op: "AttachENI", Err: cloudfake.Err(cloud.Throttled, "")})
		n.burst(0, 3, time.Minute)
		n.settle(10 * time.Second)
		if got := n.cloud.Front.Count("CreateENI"); got != 1 {
			t.Fatalf("%d ENIs made, want the one that cannot be attached yet", got)
		}
		n.kill()
		n.store = &memStore{}
		n.cloud.Front.ClearFaults()
		n.cloud.Front.ResetCalls()
		n.start()
		n.burst(3, 5, time.Minute)
		n.settle(time.Minute)
		check.Equal(t, n.cloud.Front.Count("CreateENI"), 0, "ENIs made beside the detached one")
		n.check()
	})
}
