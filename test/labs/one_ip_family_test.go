package labs

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
	"github.com/berthnet/berth/test/harness"
)

// familyTroubles are failures of one of two families, by node.
var familyTroubles = map[string]func(*testing.T, *cluster, string){"full": subnetFull, "invented": availableInvented, "taken": takenByOthers}

// TestFailuresOfOneIPFamily has dual-stack pods and failures of one family. No pod gets an address of
// one family alone, conditions name the family or the call, and nothing of one family is left. The
// instance type takes single IPv6 addresses, each by a call.
func TestFailuresOfOneIPFamily(t *testing.T) {
	t.Parallel()
	harness.Rotate(t, 3, 9)
	s := lab.DefaultSpec(1, "m4.xlarge")
	s.Instances[0].Name = witness
	for _, name := range append(slices.Sorted(maps.Keys(familyTroubles)), "refused", "lost") {
		s.Instances = append(s.Instances, spec.Instance{Name: name, Type: "t2.small", Subnet: "a", Role: s.Roles[0].Name})
	}
	s.VPCs[0].Subnets[0].Tags = map[string]string{"for": "pods"}
	s.VPCs[0].Subnets = append(s.VPCs[0].Subnets, spec.Subnet{
		Name: "tiny", Zone: "lab-1a", CIDR: netip.MustParsePrefix("10.0.8.0/28"), Tags: map[string]string{"for": "few"},
	})
	c := raiseOf(t, s, ipfamily.Dual)
	c.few = harness.Size{Type: "t2.small", ENIs: 3, PerENI: 3} // of IPv4, and four of IPv6
	c.eachOnItsNode(t, familyTroubles)
	t.Run("refused", func(t *testing.T) { refusedIPv6(t, c, "refused") })
	t.Run("lost", func(t *testing.T) { lostIPv6(t, c, "lost") })
	for _, n := range c.Nodes() {
		c.paired(t, n.Name)
	}
	harness.Settle(t, c.Lab)
	harness.StartedOnce(t, harness.Programs(c.Lab)...)
}

// paired waits until each further ENI of a node has as many addresses of one family as of the other.
func (c *cluster) paired(t *testing.T, name string) {
	t.Helper()
	harness.Eventually(t, patience, name+" has addresses in pairs", func() (err error) {
		for _, e := range harness.ENIs(c.Lab, c.named(t, name))[1:] {
			if len(e.Secondary) != len(e.IPv6) {
				err = errors.Join(err, fmt.Errorf("%s has %v and %v", e.ID, e.Secondary, e.IPv6))
			}
		}
		return err
	})
}

// takenByOthers removes an IPv6 address from an ENI behind Berth's back: no pod gets it, and the node
// gets another.
func takenByOthers(t *testing.T, c *cluster, name string) {
	n := c.named(t, name)
	c.want(t, name, 2)
	c.has(t, name, 2)
	p := harness.Add(t, n, "stays")
	c.has(t, name, 3)
	c.well(t, name)
	c.paired(t, name)
	e := harness.ENIs(c.Lab, n)[1]
	free := slices.DeleteFunc(slices.Clone(e.IPv6), func(a netip.Addr) bool { return slices.Contains(p.Addrs, a) })
	harness.OK(t, c.Cloud.ENIs.Unassign(e.ID, vpc.Assigned{IPv6: free[:1]}))
	harness.Becomes(t, c.Lab, name, "what was taken is not available, and another is", func(o *v1alpha1.NodeNetwork) error {
		if _, ok := o.Spec.IPAM.Available[free[0].String()]; ok {
			return fmt.Errorf("%s is available", free[0])
		}
		if got := harness.Addresses(o); got < 3 {
			return fmt.Errorf("%d addresses", got)
		}
		return nil
	})
	c.othersGrow(t)
	c.well(t, name)
	for i := range 2 {
		next := harness.Add(t, n, fmt.Sprintf("next-%d", i))
		for _, a := range next.Addrs {
			if !slices.ContainsFunc(harness.ENIs(c.Lab, n), func(e vpc.ENI) bool { return e.Owns(a) }) {
				t.Errorf("pod %s has %s, which no ENI has", next.Name, a)
			}
		}
	}
}

// refusedIPv6 denies the assignment of IPv6 addresses: the condition names the call, pods get what the
// node has, and no IPv4 address is assigned in vain.
func refusedIPv6(t *testing.T, c *cluster, name string) {
	const action = "AssignIpv6Addresses"
	c.has(t, name, 1)
	c.well(t, name)
	c.Cloud.API.Deny(action)
	c.want(t, name, 2)
	c.condition(t, name, v1alpha1.ConditionDegraded, metav1.ConditionTrue, "Permission", action, "UnauthorizedOperation", "allow the action")
	c.event(t, name, "NetworkPermission", action)
	c.paired(t, name)
	harness.Add(t, c.named(t, name), "meanwhile")
	c.Cloud.API.Allow(action)
	c.healed(t, name, 3)
}

// lostIPv6 loses replies of calls that assigned IPv6 addresses: nothing is left behind.
func lostIPv6(t *testing.T, c *cluster, name string) {
	const action = "AssignIpv6Addresses"
	c.has(t, name, 1)
	c.Cloud.API.ResetCalls()
	_, err := c.Cloud.API.Inject(spec.Fault{Action: action, Kind: "lostReply", Count: 1})
	harness.OK(t, err)
	c.want(t, name, 3)
	c.has(t, name, 3)
	c.well(t, name)
	if met := c.Cloud.API.FaultsMet(); met["lostReply"] == 0 {
		t.Errorf("no reply was lost: %v", met)
	}
	c.rests(t, name, 3)
}
