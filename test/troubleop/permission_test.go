package troubleop

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/lab"
	"github.com/berthnet/berth/internal/lab/cloud/spec"
	"github.com/berthnet/berth/test/harness"
)

// denial is an EC2 action that a node needs next and the operator may not use.
type denial struct {
	action string
	before int32                           // addresses that the node has when it is denied
	after  int32                           // that it asks for then
	edit   func(*v1alpha1.NodeNetworkSpec) // besides; may be nil
	enis   int                             // that the node has in the end
}

// denials are taken together, but for those that would keep another node from
// the step that it is about.
func denials() [][]denial {
	no := false
	return [][]denial{{
		{"CreateNetworkInterface", 3, 5, nil, 3},
		{"UnassignPrivateIpAddresses", 3, 1, nil, 2},
		{"DetachNetworkInterface", 5, 3, nil, 2},
		{"ModifyNetworkInterfaceAttribute", 1, 1, func(s *v1alpha1.NodeNetworkSpec) { s.ENI.DeleteOnTermination = &no }, 2},
		{"DescribeSecurityGroups", 3, 5, func(s *v1alpha1.NodeNetworkSpec) { s.ENI.SecurityGroupTags = map[string]string{"for": "pods"} }, 3},
	}, {
		{"AttachNetworkInterface", 3, 5, nil, 3},
		{"DeleteNetworkInterface", 5, 3, nil, 2},
	}}
}

// nodeOf names the node that needs an action.
func nodeOf(action string) string { return strings.ToLower(action[:min(len(action), 40)]) }

// TestPermissionDenied takes one EC2 action each from the operator that a node
// needs next. It stops what needs that action alone, is told with the action's
// name, leaves nothing behind, and heals once the action is allowed.
func TestPermissionDenied(t *testing.T) {
	t.Parallel()
	const assign = "AssignPrivateIpAddresses"
	s := lab.DefaultSpec(2, "t3.small")
	s.Instances[0].Name, s.Instances[0].Type = "witness", "m5.xlarge"
	s.Instances[1].Name = "creator"
	s.VPCs[0].SecurityGroups[0].Tags = map[string]string{"for": "pods"}
	for _, d := range append(slices.Concat(denials()...), denial{action: assign}) {
		s.Instances = append(s.Instances, spec.Instance{Name: nodeOf(d.action), Type: "t3.small", Subnet: "a", Role: s.Roles[0].Name})
	}
	c := raise(t, "witness", lab.Options{Spec: &s})
	all := slices.Concat(denials()...)
	for _, d := range all {
		c.want(t, nodeOf(d.action), d.before)
	}
	c.want(t, "creator", 3)
	c.has(t, "creator", 3)
	for _, name := range []string{"witness", "creator", nodeOf(assign)} { // what is denied is nothing of theirs
		c.has(t, name, 1)
		c.well(t, name)
		c.kept(t, name)
	}
	for _, d := range all {
		c.has(t, nodeOf(d.action), int(d.before))
		c.well(t, nodeOf(d.action))
		c.kept(t, nodeOf(d.action))
	}
	for _, group := range denials() {
		c.deny(t, group)
	}

	// Without this one a node grows by whole ENIs still.
	c.Cloud.Deny(assign)
	c.want(t, nodeOf(assign), 2)
	c.condition(t, nodeOf(assign), v1alpha1.ConditionDegraded, "True", "Permission", assign, "allow the action")
	c.event(t, nodeOf(assign), "NetworkPermission", assign)
	c.want(t, "creator", 4)
	c.has(t, "creator", 4)
	c.Cloud.Allow(assign)

	c.healed(t, nodeOf(assign), 2)
	for _, d := range all {
		name := nodeOf(d.action)
		c.condition(t, name, v1alpha1.ConditionDegraded, "False", "")
		c.healed(t, name, int(min(d.before, d.after)))
		harness.Eventually(t, patience, name+" has its ENIs", func() error {
			return sameCount("ENIs", len(c.enis(c.named(t, name))), d.enis)
		})
	}
	harness.Settle(t, c.Lab)
}

// kept waits until nothing is left to do for the ENIs of a node, which has its
// addresses before EC2 is told that they are to end with the instance.
func (c *cluster) kept(t *testing.T, name string) {
	t.Helper()
	harness.Eventually(t, patience, "the ENIs of "+name+" are as they should be", func() error {
		for _, e := range c.enis(c.named(t, name)) {
			if !e.Attachment.DeleteOnTermination {
				return fmt.Errorf("%s would outlive the instance", e.ID)
			}
		}
		return nil
	})
}

// deny takes actions away, has nodes need them, and gives them back once every
// node has said so.
func (c *cluster) deny(t *testing.T, group []denial) {
	t.Helper()
	for _, d := range group {
		c.Cloud.Deny(d.action)
	}
	for _, d := range group {
		c.edit(t, nodeOf(d.action), func(s *v1alpha1.NodeNetworkSpec) {
			s.ENI.PreAllocate = &d.after
			if d.edit != nil {
				d.edit(s)
			}
		})
	}
	for _, d := range group {
		c.troubled(t, nodeOf(d.action), v1alpha1.ConditionDegraded, "Permission", d.action, "UnauthorizedOperation", "allow the action")
	}
	for _, d := range group {
		c.Cloud.Allow(d.action)
	}
}
