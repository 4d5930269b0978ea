package operator

import (
	"errors"
	"fmt"
	"regexp"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/api/v1alpha1"
	operatormode "github.com/berthnet/berth/deploy/operator-mode"
	"github.com/berthnet/berth/internal/vpclab/lab"
	"github.com/berthnet/berth/internal/vpclab/node"
	"github.com/berthnet/berth/internal/vpclab/spec"
	"github.com/berthnet/berth/test/harness"
)

// An operator with deploy/operator-mode/iam-policy.json, and nodes that may
// call nothing, grow and shrink without being refused once; and the policy has
// no action that none of this needs.
func TestPolicySuffices(t *testing.T) {
	s := lab.DefaultSpec(2, "m5.large")
	s.VPCs[0].SecurityGroups = append(s.VPCs[0].SecurityGroups, spec.SecurityGroup{
		Name: "pods", Description: "of pods", Tags: map[string]string{"for": "pods"},
		Ingress: s.VPCs[0].SecurityGroups[0].Ingress,
	})
	l := harness.Raise(t, lab.Options{Mode: lab.OperatorMode, Spec: &s, DaemonArgs: quickDaemon, OperatorArgs: quickOperator})
	ctx := harness.Deadline(t, 10*time.Minute)

	first, prefixes := l.Nodes()[0], l.Nodes()[1]
	edit(t, l, first, func(e *v1alpha1.ENISpec) { e.SecurityGroupTags = map[string]string{"for": "pods"} })
	edit(t, l, prefixes, func(e *v1alpha1.ENISpec) { e.PrefixDelegation = true })
	const pods = 12 // one ENI of an m5.large has room for nine
	for _, n := range l.Nodes() {
		for i := range pods {
			_, err := n.AddPod(ctx, fmt.Sprintf("p%d", i), node.PodOptions{})
			harness.OK(t, err)
		}
	}
	for _, n := range l.Nodes() {
		for i := range pods {
			harness.OK(t, n.DelPod(ctx, fmt.Sprintf("p%d", i)))
		}
	}
	harness.Eventually(t, time.Minute, "surplus ENIs go", func() error {
		if enis := l.Books().InstanceENIs(first.InstanceID); len(enis) > 2 {
			return fmt.Errorf("%s has %d ENIs", first.Name, len(enis))
		}
		return nil
	})
	harness.Settle(t, l)

	harness.OK(t, l.Cloud.TerminateInstance(prefixes.InstanceID))
	harness.Eventually(t, time.Minute, "the operator asks what became of an instance", func() error {
		if l.Cloud.Calls()["DescribeInstances"].Count == 0 {
			return errors.New("it did not")
		}
		return nil
	})
	calls := l.Cloud.Calls()
	for action, c := range calls {
		if c.Errors["UnauthorizedOperation"] > 0 {
			t.Errorf("%s was refused", action)
		}
	}
	for _, m := range regexp.MustCompile(`ec2:([A-Z]\w+)`).FindAllSubmatch(operatormode.Policy, -1) {
		// Tags are given at creation, for which EC2 wants this permission too.
		if action := string(m[1]); calls[action].Count == 0 && action != "CreateTags" {
			t.Errorf("%s was never called", action)
		}
	}
}

// edit changes what a person asks for on a node.
func edit(t *testing.T, l *lab.Lab, n *node.Node, change func(*v1alpha1.ENISpec)) {
	t.Helper()
	o, err := l.Kube.NodeNetwork(t.Context(), n.Name)
	harness.OK(t, err)
	before := o.DeepCopy()
	change(&o.Spec.ENI)
	harness.OK(t, l.Kube.Client.Patch(t.Context(), o, client.MergeFrom(before)))
}
