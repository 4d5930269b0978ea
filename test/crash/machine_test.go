package crash

import (
	"context"
	"testing"

	_ "github.com/berthnet/berth/internal/kernel/plug/tap"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// machineMode is port mode with virtual machines in pods. What nodes do for them is killed at:
// all else is as with containers.
var machineMode = mode{
	name:   lab.PortMode,
	daemon: named("plug.tap.", "plug.bridge."), kills: named("plug.tap.", "plug.bridge."),
}

// TestKilledWithAMachine kills the daemon at every step of giving a virtual machine its NICs, of
// either binding, and of taking them away while it runs.
func TestKilledWithAMachine(t *testing.T) {
	t.Parallel()
	harness.Rotate(t, harness.OddSlices...)
	harness.CanRun(t, lab.PortMode)
	l := harness.Raise(t, machineMode.lab(1, 1))
	n := l.Nodes()[0]
	pod := node.PodOptions{VM: true, Annotations: map[string]string{"berth.dev/nics": "[{binding: tap}, {subnet: subnet-2, binding: bridge}]"}}
	for _, name := range harness.Sample(t, 3, machineMode.kills) {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			dieAt(ctx, t, machineMode, l, name, func() {
				_, err := n.AddPod(ctx, "pod", pod)
				harness.OK(t, err)
				harness.Settle(t, l) // the machine has what its ports have
				harness.OK(t, n.DelPod(ctx, "pod"))
			})
			harness.OK(t, noPorts(ctx, l))
			harness.Settle(t, l)
		})
	}
}
