package crash

import (
	"context"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/portcloud"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/poll"
	"github.com/berthnet/berth/test/harness"
)

// alcorMode is port mode with an Alcor. What nodes do with the links of its agent is killed at:
// all else is as with Neutron.
var alcorMode = mode{
	name: lab.PortMode, options: lab.Options{PortCloud: portcloud.NewAlcor},
	daemon: named("plug.nsveth."), kills: named("plug.nsveth."),
}

// TestKilledWithAnAgentsLink kills the daemon at every step of taking a link of Alcor's agent to
// a pod and back. The PodNIC outlives its pods, so there is one link all the time: it is in the
// pod that has the NIC, or else in the VPC's namespace as the agent made it.
func TestKilledWithAnAgentsLink(t *testing.T) {
	t.Parallel()
	harness.Rotate(t, harness.EvenSlices...)
	l := harness.Raise(t, alcorMode.lab(1, 1))
	n, cloud := l.Nodes()[0], l.Ports.(*portcloud.Alcor)
	kept := &v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kept"}, Spec: v1alpha1.PodNICSpec{VPC: l.VPCs[0].Name}}
	harness.OK(t, l.Kube.Client.Create(harness.Deadline(t, patience), kept))
	pod := node.PodOptions{Annotations: map[string]string{"berth.dev/nics": "[{nic: kept}]"}}
	port := ""
	for _, name := range harness.Sample(t, 5, alcorMode.kills) {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			dieAt(ctx, t, alcorMode, l, name, func() {
				_, err := n.AddPod(ctx, "pod", pod)
				harness.OK(t, err)
				harness.Settle(t, l) // the link is in the pod
				harness.OK(t, n.DelPod(ctx, "pod"))
			})
			harness.OK(t, poll.Until(ctx, func() error {
				home, err := cloud.Home(n.Name)
				if err != nil {
					return err
				}
				return harness.Equal("links in the VPC's namespace", len(home), 1)
			}))
			home, err := cloud.Home(n.Name)
			harness.OK(t, err)
			if port != "" && !slices.Equal(home, []string{port}) {
				t.Errorf("the link is of port %q, was of %s", home, port)
			}
			port = home[0]
			harness.Settle(t, l)
		})
	}
}
