//go:build guest && e2e

package demo

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/kube"
	"github.com/berthnet/berth/test/harness"
)

// TestBranches wants every proof of make demo MODE=branches.
func TestBranches(t *testing.T) {
	var err error
	harness.ControlPlane, err = kube.Remote(os.Getenv(kube.RemoteDir))
	harness.OK(t, err)
	harness.KubeClean(t) // other packages' labs have nodes of the same names
	harness.OK(t, lacksVLANs())
	var out bytes.Buffer
	o := options(t, &out)
	o.Lab.Mode, o.Lab.VPCPorts = lab.OperatorMode, true
	if err := Run(t.Context(), o); err != nil {
		t.Errorf("%v\n%s", err, &out)
	}
	if got := strings.Count(out.String(), "  ✓ "); got != len(branchProofs) {
		t.Errorf("%d ticks for %d proofs:\n%s", got, len(branchProofs), &out)
	}
}

// TestEgress wants every proof of make demo MODE=egress.
func TestEgress(t *testing.T) {
	var err error
	harness.ControlPlane, err = kube.Remote(os.Getenv(kube.RemoteDir))
	harness.OK(t, err)
	harness.KubeClean(t) // other packages' labs have pools and nodes of the same names
	var out bytes.Buffer
	o := options(t, &out)
	o.Lab.Mode, o.Lab.Egress = lab.PoolMode, true
	if err := Run(t.Context(), o); err != nil {
		t.Errorf("%v\n%s", err, &out)
	}
	if got := strings.Count(out.String(), "  ✓ "); got != len(egressProofs) {
		t.Errorf("%d ticks for %d proofs:\n%s", got, len(egressProofs), &out)
	}
}
