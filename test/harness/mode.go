package harness

import (
	"slices"
	"testing"

	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/network/ovn"
)

// quickDaemon are settings of daemons in every mode under which nothing takes
// long. berth stands alone in the CNI configuration, as CHECK of the reference
// plugins (1.1.1) fails where they have nothing to do.
var quickDaemon = []string{"--log-level=debug", "--cni-chain=", "--cooling-period=1s", "--netns-grace=1s", "--repair-interval=5s"}

// quickLeases are of operators where nothing is about losing a Lease: a leader
// stays one, however busy the machine.
var quickLeases = []string{"--log-level=debug", "--lease-duration=3600s", "--renew-deadline=3000s", "--retry-period=1s"}

// Settings of daemons and operators where pods have ports.
var (
	quickPorts    = []string{"--port-wait=5s", "--warm-wait=5s"}
	quickPortDesk = []string{"--listing-interval=2s", "--settle-time=2s", "--orphan-age=3s", "--orphan-interval=1s", "--unplug-grace=3s"}
)

// quickReconciler are settings of who calls EC2: the daemon, or the operator.
var quickReconciler = []string{"--shrink-delay=300ms", "--listing-interval=2s"}

// Quick is a lab of a mode with settings under which nothing takes long, whose pods
// have addresses of Families. What o says counts where both say it.
func Quick(m lab.Mode, o lab.Options) lab.Options {
	o.Mode = m
	o = withFamilies(o)
	daemon, operator := quickDaemon, quickLeases
	switch m {
	case lab.NodeMode:
		daemon = slices.Concat(daemon, quickReconciler, []string{"--warm-wait=1s"})
	case lab.OperatorMode: // nodes keep one address warm and leave the primary ENI to themselves
		daemon = slices.Concat(daemon, []string{"--pre-allocate=1", "--warm-wait=2s"})
		operator = slices.Concat(operator, quickReconciler, []string{"--settle-time=2s", "--orphan-age=3s", "--orphan-interval=1s"})
	case lab.PoolMode:
		daemon = slices.Concat(daemon, []string{"--block-release-delay=300ms"})
		operator = slices.Concat(operator, []string{"--orphan-interval=1s"})
	case lab.PortMode:
		daemon, operator = slices.Concat(daemon, quickPorts), slices.Concat(operator, quickPortDesk)
	}
	if o.VPCPorts {
		daemon, operator = slices.Concat(daemon, quickPorts), slices.Concat(operator, quickPortDesk)
	}
	o.DaemonArgs, o.OperatorArgs = slices.Concat(daemon, o.DaemonArgs), slices.Concat(operator, o.OperatorArgs)
	return o
}

// CanRun leaves a test out where a mode needs what is not installed.
func CanRun(t *testing.T, m lab.Mode) {
	t.Helper()
	if m != lab.PortMode {
		return
	}
	if err := ovn.Installed(); err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
}

// RaiseQuick is Raise of Quick.
func RaiseQuick(t *testing.T, m lab.Mode, o lab.Options) *lab.Lab {
	t.Helper()
	return Raise(t, Quick(m, o))
}
