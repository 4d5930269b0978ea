package crash

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthnet/berth/api/v1alpha1"
	_ "github.com/berthnet/berth/internal/kernel/plug/tap"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/portcloud"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/poll"
	"github.com/berthnet/berth/test/harness"
)

// alcorMode is port mode with an Alcor, machineMode with virtual machines in pods. Programs are
// killed at what nodes do for these: the rest is as with Neutron and with containers.
var (
	alcorMode = mode{
		name: lab.PortMode, options: lab.Options{PortCloud: portcloud.NewAlcor},
		daemon: named("plug.nsveth."), kills: named("plug.nsveth."),
	}
	machineMode = mode{
		name:   lab.PortMode,
		daemon: named("plug.tap.", "plug.bridge."), kills: named("plug.tap.", "plug.bridge."),
	}
)

// TestDaemonKilledWhilePlugging kills the daemon at every step of giving a pod a NIC and taking it
// away: a link of Alcor's agent, or a virtual machine's interface of either binding.
func TestDaemonKilledWhilePlugging(t *testing.T) {
	t.Parallel()
	t.Run("alcor", func(t *testing.T) {
		t.Parallel()
		harness.Rotate(t, harness.EvenSlices...)
		l := harness.Raise(t, alcorMode.lab(1, 1))
		kept := &v1alpha1.PodNIC{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kept"}, Spec: v1alpha1.PodNICSpec{VPC: l.VPCs[0].Name}}
		harness.OK(t, l.Kube.Client.Create(harness.Deadline(t, patience), kept))
		pod := node.PodOptions{Annotations: map[string]string{"berth.dev/nics": "[{nic: kept}]"}}
		port := ""
		killedWhilePlugging(t, alcorMode, l, harness.Sample(t, 5, alcorMode.kills), pod, func(ctx context.Context, t *testing.T) {
			home := linkAtHome(ctx, t, l)
			if port != "" && home != port {
				t.Errorf("the link is of port %q, was of %s", home, port)
			}
			port = home
		})
	})
	t.Run("machine", func(t *testing.T) {
		t.Parallel()
		harness.Rotate(t, harness.OddSlices...)
		harness.CanRun(t, lab.PortMode)
		l := harness.Raise(t, machineMode.lab(1, 1))
		pod := node.PodOptions{VM: true, Annotations: map[string]string{"berth.dev/nics": "[{binding: tap}, {subnet: subnet-2, binding: bridge}]"}}
		killedWhilePlugging(t, machineMode, l, harness.Sample(t, 3, machineMode.kills), pod, func(ctx context.Context, t *testing.T) {
			harness.OK(t, noPorts(ctx, l))
		})
	})
}

// killedWhilePlugging has a pod come and go while the daemon is killed at each failpoint, and then
// looks at what is gone.
func killedWhilePlugging(t *testing.T, m mode, l *lab.Lab, failpoints []string, pod node.PodOptions, gone func(context.Context, *testing.T)) {
	t.Helper()
	n := l.Nodes()[0]
	for _, name := range failpoints {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			dieAt(ctx, t, m, l, name, func() {
				_, err := n.AddPod(ctx, "pod", pod)
				harness.OK(t, err)
				harness.Settle(t, l) // the pod has its NICs
				harness.OK(t, n.DelPod(ctx, "pod"))
			})
			gone(ctx, t)
			harness.Settle(t, l)
		})
	}
}

// linkAtHome waits until one link is in the VPC's namespace, as Alcor's agent made it, and returns its port.
func linkAtHome(ctx context.Context, t *testing.T, l *lab.Lab) string {
	t.Helper()
	var home []string
	harness.OK(t, poll.Until(ctx, func() (err error) {
		if home, err = l.Ports.(*portcloud.Alcor).Home(l.Nodes()[0].Name); err != nil {
			return err
		}
		return harness.Equal("links in the VPC's namespace", len(home), 1)
	}))
	return home[0]
}
