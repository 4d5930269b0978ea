package demo

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/vpccni"
	"github.com/berthnet/berth/test/harness"
)

// amazonVPCCNI is the directory of the programs of the Amazon VPC CNI.
func amazonVPCCNI(t *testing.T) string {
	t.Helper()
	var dir string
	for _, program := range []string{vpccni.DaemonProgram, vpccni.PluginProgram} {
		out, err := exec.Command("../../hack/tool.sh", "amazonvpccni", program).Output()
		if err != nil {
			t.Fatalf("build %s: %v", program, err)
		}
		dir = filepath.Dir(string(bytes.TrimSpace(out)))
	}
	return dir
}

// A node moves from the real Amazon VPC CNI to Berth and back under connections, and the tool is killed at every step.
func TestMigrationFromAmazonVPCCNI(t *testing.T) {
	t.Parallel()
	harness.Slot(t)
	var out bytes.Buffer
	o := options(t, &out)
	o.Lab.Mode, o.Lab.IPFamilies, o.Lab.AmazonVPCCNI = lab.NodeMode, ipfamily.OnlyIPv4, amazonVPCCNI(t)
	prove(t, o, &out, len(migrationProofs))
	t.Log(out.String())
}
