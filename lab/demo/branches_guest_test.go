//go:build guest && e2e

package demo

import (
	"bytes"
	"os"
	"testing"

	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/kube"
	"github.com/berthnet/berth/test/harness"
)

// TestBranches runs every proof of make demo MODE=branches.
func TestBranches(t *testing.T) {
	harness.OK(t, lacksVLANs())
	proveInGuest(t, lab.Options{Mode: lab.OperatorMode, VPCPorts: true}, len(branchProofs))
}

// TestEgress runs every proof of make demo MODE=egress.
func TestEgress(t *testing.T) {
	proveInGuest(t, lab.Options{Mode: lab.PoolMode, Egress: true}, len(egressProofs))
}

func proveInGuest(t *testing.T, of lab.Options, proofs int) {
	t.Helper()
	var err error
	harness.ControlPlane, err = kube.Remote(os.Getenv(kube.RemoteDir))
	harness.OK(t, err)
	harness.KubeClean(t) // labs of other packages use the same names of pools and nodes
	var out bytes.Buffer
	o := options(t, &out)
	o.Lab.Mode, o.Lab.VPCPorts, o.Lab.Egress = of.Mode, of.VPCPorts, of.Egress
	prove(t, o, &out, proofs)
}
