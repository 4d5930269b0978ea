package labs

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// TestDeniedEC2ActionsAreReported denies the EC2 action that a node needs next. Only what needs this
// action stops, the message names it, nothing is left behind, and it continues once the action is
// allowed.
func TestDeniedEC2ActionsAreReported(t *testing.T) {
	t.Parallel()
	for mode, test := range map[lab.Mode]func(*testing.T){
		lab.NodeMode: permissionDeniedToDaemons, lab.OperatorMode: permissionDeniedToOperator,
	} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			if mode == lab.OperatorMode { // an action that was denied is tried again after a minute
				harness.Rotate(t, 2, 6)
			}
			test(t)
		})
	}
}

// permissionDeniedToDaemons has three nodes with a role each. What only a person can fix is tried
// again about once a minute.
func permissionDeniedToDaemons(t *testing.T) {
	few := harness.Few(t, "t3.small")
	s := lab.DefaultSpec(3, few.Type)
	assign, unassign := assignments()
	denied := []string{assign, "CreateNetworkInterface", "AttachNetworkInterface"}
	all := []string{
		"ec2:Describe*", "ec2:CreateTags", "ec2:DeleteNetworkInterface", "ec2:DetachNetworkInterface",
		"ec2:ModifyNetworkInterfaceAttribute", "ec2:" + unassign,
	}
	s.Roles = nil
	for i, action := range denied {
		s.Roles = append(s.Roles, spec.Role{Name: action, Actions: []string{"*"}})
		s.Instances[i].Role = action
	}
	l := harness.RaiseQuick(t, lab.NodeMode, lab.Options{Spec: &s, DaemonArgs: []string{"--warm-eni-target=0", "--warm-ip-target=0", "--minimum-ip-target=1"}})
	// The first node has room on its ENI for pods, the others have filled theirs.
	for i, n := range l.Nodes() {
		for k := range []int{1, few.PerENI, few.PerENI}[i] {
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
		l.Cloud.Keys.SetRoleActions(action, append(slices.Clone(all), others...))
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
		l.Cloud.Keys.SetRoleActions(action, []string{"*"})
	}
	ctx := harness.Deadline(t, 10*time.Minute)
	for i, n := range l.Nodes() {
		t.Run(denied[i]+" allowed", func(t *testing.T) {
			_, err := n.AddPod(ctx, "allowed", node.PodOptions{})
			harness.OK(t, err)
			if want, got := few.Resting()+min(i, 1), len(harness.ENIs(l, n)); got != want {
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

// denials are the actions that are denied together. One that would keep another node from its step is
// in another group.
func denials(few harness.Size) [][]denial {
	no := false
	one := int32(few.PerENI) // addresses of one ENI
	two := one + 2           // and of two
	_, unassign := assignments()
	return [][]denial{{
		{"CreateNetworkInterface", one, two, nil, 3},
		{unassign, one, 1, nil, 2},
		{"DetachNetworkInterface", two, one, nil, 2},
		{"ModifyNetworkInterfaceAttribute", 1, 1, func(s *v1alpha1.NodeNetworkSpec) { s.ENI.DeleteOnTermination = &no }, 2},
		{"DescribeSecurityGroups", one, two, func(s *v1alpha1.NodeNetworkSpec) { s.ENI.SecurityGroupTags = map[string]string{"for": "pods"} }, 3},
	}, {
		{"AttachNetworkInterface", one, two, nil, 3},
		{"DeleteNetworkInterface", two, one, nil, 2},
	}}
}

// assignments are the actions by which an ENI gets and loses the addresses that pods run out of: IPv4,
// where pods have any.
func assignments() (assign, unassign string) {
	if harness.Families() == ipfamily.OnlyIPv6 {
		return "AssignIpv6Addresses", "UnassignIpv6Addresses"
	}
	return "AssignPrivateIpAddresses", "UnassignPrivateIpAddresses"
}

// nodeOf names the node that needs an action.
func nodeOf(action string) string { return strings.ToLower(action[:min(len(action), 40)]) }

// permissionDeniedToOperator has a node for each action.
func permissionDeniedToOperator(t *testing.T) {
	assign, _ := assignments()
	groups := denials(harness.Few(t, "t3.small"))
	all := slices.Concat(groups...)
	nodes := []string{"creator", nodeOf(assign)}
	for _, d := range all {
		nodes = append(nodes, nodeOf(d.action))
	}
	s := withNodes(t, nodes...)
	s.VPCs[0].SecurityGroups[0].Tags = map[string]string{"for": "pods"}
	c := raise(t, s)
	for _, d := range all {
		c.want(t, nodeOf(d.action), d.before)
	}
	c.want(t, "creator", int32(c.few.PerENI))
	c.has(t, "creator", c.few.PerENI)
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
	for _, group := range groups {
		c.deny(t, group)
	}

	// Without this action a node still grows by whole ENIs.
	c.Cloud.API.Deny(assign)
	c.want(t, nodeOf(assign), 2)
	c.condition(t, nodeOf(assign), v1alpha1.ConditionDegraded, "True", "Permission", assign, "allow the action")
	c.event(t, nodeOf(assign), "NetworkPermission", assign)
	c.want(t, "creator", int32(c.few.PerENI+1))
	c.has(t, "creator", c.few.PerENI+1)
	c.Cloud.API.Allow(assign)

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

// kept waits until all ENIs of a node end with the instance. EC2 is asked for that after pods can have
// the addresses.
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

// deny denies actions, has nodes need them, and allows them again once every node has reported its
// own.
func (c *cluster) deny(t *testing.T, group []denial) {
	t.Helper()
	for _, d := range group {
		c.Cloud.API.Deny(d.action)
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
		c.Cloud.API.Allow(d.action)
	}
}
