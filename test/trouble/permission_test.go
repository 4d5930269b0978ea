package trouble

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/introspect"
	"github.com/berthnet/berth/internal/lab"
	"github.com/berthnet/berth/internal/lab/cloud/spec"
	"github.com/berthnet/berth/internal/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// TestPermissionDenied takes EC2 actions from who needs them next, and gives them
// back. It stops what needs that action alone, is told with the action's name,
// leaves nothing behind, and heals once the action is allowed.
func TestPermissionDenied(t *testing.T) {
	t.Parallel()
	for mode, test := range map[lab.Mode]func(*testing.T){
		lab.NodeMode: permissionDeniedToDaemons, lab.OperatorMode: permissionDeniedToOperator,
	} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

// permissionDeniedToDaemons has three nodes with a role each. Nothing that only a
// person can heal is tried again more than once in a minute or so.
func permissionDeniedToDaemons(t *testing.T) {
	s := lab.DefaultSpec(3, "t3.small")
	denied := []string{"AssignPrivateIpAddresses", "CreateNetworkInterface", "AttachNetworkInterface"}
	all := []string{
		"ec2:Describe*", "ec2:CreateTags", "ec2:DeleteNetworkInterface", "ec2:DetachNetworkInterface",
		"ec2:ModifyNetworkInterfaceAttribute", "ec2:UnassignPrivateIpAddresses",
	}
	s.Roles = nil
	for i, action := range denied {
		s.Roles = append(s.Roles, spec.Role{Name: action, Actions: []string{"*"}})
		s.Instances[i].Role = action
	}
	l := harness.RaiseQuick(t, lab.NodeMode, lab.Options{Spec: &s, DaemonArgs: []string{"--warm-eni-target=0", "--warm-ip-target=0", "--minimum-ip-target=1"}})
	// The first node has room on its primary ENI, the others have filled it.
	for i, n := range l.Nodes() {
		for k := range []int{1, 3, 3}[i] {
			harness.Add(t, n, fmt.Sprintf("p%d", k))
		}
	}
	harness.Settle(t, l)
	for _, n := range l.Nodes() { // nor does a spare address, of an ADD that was tried again, hide what is denied
		harness.Shows(t, n, "no address is spare on "+n.Name, func(doc introspect.Document) error {
			return harness.Equal("spare addresses", doc.Totals.Available+doc.Totals.Cooling, 0)
		})
	}
	for _, action := range denied {
		others := slices.DeleteFunc(slices.Clone(denied), func(a string) bool { return a == action })
		l.Cloud.SetRoleActions(action, append(slices.Clone(all), others...))
	}
	for i, n := range l.Nodes() {
		t.Run(denied[i], func(t *testing.T) {
			full(t, n, "denied", denied[i], "UnauthorizedOperation", "allow the action")
			harness.HasError(t, n, denied[i])
			harness.Waiting(t, n, 0)
			takesPods(t, n) // running pods are no reason to be evicted
		})
	}
	for _, action := range denied {
		l.Cloud.SetRoleActions(action, []string{"*"})
	}
	ctx := harness.Deadline(t, 10*time.Minute)
	for i, n := range l.Nodes() {
		t.Run(denied[i]+" allowed", func(t *testing.T) {
			_, err := n.AddPod(ctx, "allowed", node.PodOptions{})
			harness.OK(t, err)
			if want, got := min(i+1, 2), len(harness.ENIs(l, n)); got != want {
				t.Errorf("%d ENIs, want %d", got, want)
			}
		})
	}
	harness.Settle(t, l)
	harness.StartedOnce(t, harness.Programs(l)...)
	for _, n := range l.Nodes() {
		harness.ErrorGone(t, n)
	}
}

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

// permissionDeniedToOperator has a node for each action.
func permissionDeniedToOperator(t *testing.T) {
	const assign = "AssignPrivateIpAddresses"
	all := slices.Concat(denials()...)
	nodes := []string{"creator", nodeOf(assign)}
	for _, d := range all {
		nodes = append(nodes, nodeOf(d.action))
	}
	s := withNodes(nodes...)
	s.VPCs[0].SecurityGroups[0].Tags = map[string]string{"for": "pods"}
	c := raise(t, s)
	for _, d := range all {
		c.want(t, nodeOf(d.action), d.before)
	}
	c.want(t, "creator", 3)
	c.has(t, "creator", 3)
	for _, name := range []string{witness, "creator", nodeOf(assign)} { // what is denied is nothing of theirs
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
			return harness.Equal("ENIs", len(harness.ENIs(c.Lab, c.named(t, name))), d.enis)
		})
	}
	harness.Settle(t, c.Lab)
}

// kept waits until nothing is left to do for the ENIs of a node, which has its
// addresses before EC2 is told that they are to end with the instance.
func (c *cluster) kept(t *testing.T, name string) {
	t.Helper()
	harness.Eventually(t, patience, "the ENIs of "+name+" are as they should be", func() error {
		for _, e := range harness.ENIs(c.Lab, c.named(t, name)) {
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
		harness.Edit(t, c.Lab, nodeOf(d.action), func(s *v1alpha1.NodeNetworkSpec) {
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
