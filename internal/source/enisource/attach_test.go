package enisource

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/cloudfake"
	"github.com/berthnet/berth/internal/ec2/eni"
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
		t.Run(name, inBubble("t3.small", ipam.Policy{WarmIP: 1, MinimumIP: 1}, func(t *testing.T, n *node) {
			n.startAndSettle(time.Second)
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
		}))
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
		n.startAndSettle(time.Second)
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
		n.startAndSettle(time.Second)
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

// subnetsOf returns the subnets of the secondary ENIs, by device index.
func (n *node) subnetsOf() string {
	list := n.cloud.State.Truth()
	slices.SortFunc(list, func(x, y cloud.ENI) int { return index(x) - index(y) })
	var out []string
	for _, e := range list {
		if index(e) > 0 && index(e) < 99 {
			out = append(out, e.SubnetID)
		}
	}
	return strings.Join(out, " then ")
}

// Where Berth may choose, new ENIs are created in subnets with the routes of the primary's, though
// others have more free addresses, and elsewhere only when these are full. One call finds the routes,
// and only when an ENI is to be created.
func TestNewENIsPreferThePrimarysRoutes(t *testing.T) {
	denied := &cloud.Error{Class: cloud.Permission, Op: "DescribeRouteTables", Code: "UnauthorizedOperation"}
	away := &cloud.Error{Class: cloud.Transient, Op: "DescribeRouteTables"}
	for _, c := range []struct {
		name  string
		tune  func(*eni.Config)
		fault *cloudfake.Fault
		want  string
		calls int
	}{
		{"chosen by tags", func(c *eni.Config) { c.SubnetTags = map[string]string{"for": "pods"} }, nil, "subnet-near then subnet-far", 1},
		{"any", func(c *eni.Config) { c.AnySubnet = true }, nil, "subnet-1 then subnet-1", 1},
		{"named by ID: the person chose", func(c *eni.Config) { c.SubnetIDs = []string{"subnet-far", "subnet-near"} }, nil, "subnet-far then subnet-far", 0},
		{"not permitted: as if all were alike", func(c *eni.Config) { c.AnySubnet = true },
			&cloudfake.Fault{Op: "RouteTables", Times: 99, Err: denied}, "subnet-far then subnet-far", 1},
		{"tried again after trouble", func(c *eni.Config) { c.AnySubnet = true },
			&cloudfake.Fault{Op: "RouteTables", Times: 2, Err: away}, "subnet-1 then subnet-1", 3},
		{"not for ever", func(c *eni.Config) { c.AnySubnet = true },
			&cloudfake.Fault{Op: "RouteTables", Times: 99, Err: away}, "subnet-far then subnet-far", 3},
	} {
		t.Run(c.name, inBubble("t3.small", ipam.Policy{WarmIP: 1, MinimumIP: 1}, func(t *testing.T, n *node) {
			pods := map[string]string{"for": "pods"}
			n.cloud.State.AddSubnet("subnet-near", "zone-a", "10.1.0.0/28", pods)
			for _, id := range []string{"i-a", "i-b", "i-c", "i-d", "i-e", "i-f"} {
				n.cloud.State.AddInstance(id, "t3.small", "subnet-near") // 5 addresses are left: one ENI of three pods
			}
			n.cloud.State.AddSubnet("subnet-far", "zone-a", "10.64.0.0/18", pods)
			n.cloud.State.AddRouteTable("rtb-far", "subnet-far")
			n.cloud.State.AddRouteTable("rtb-other", "subnet-elsewhere")
			n.cloud.State.AddRouteTable("rtb-home", "subnet-1", "subnet-near")
			if c.fault != nil {
				n.cloud.Front.Inject(*c.fault)
			}
			n.tune = c.tune
			n.startAndSettle(time.Second)
			check.Equal(t, n.cloud.Front.Count("RouteTables"), 0, "calls before an ENI is to be made")
			for i := range 8 {
				n.add(i, time.Minute)
			}
			n.settle(time.Second)
			check.Equal(t, n.subnetsOf(), c.want, "new ENIs in")
			check.Equal(t, n.cloud.Front.Count("RouteTables"), c.calls, "calls for route tables")
			n.check()
		}))
	}
}
