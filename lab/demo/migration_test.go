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

// A node moves from the real Amazon VPC CNI to Berth and back under connections, and the tool is killed at every step: with
// secondary addresses on two ENIs, with a /28 prefix, and with IPv6.
func TestMigrationFromAmazonVPCCNI(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name     string
		families ipfamily.Set
		env      map[string]string
		slices   []int
	}{
		{"secondary addresses", ipfamily.OnlyIPv4, nil, []int{1, 3, 6, 8}},
		{"prefixes", ipfamily.OnlyIPv4, map[string]string{prefixDelegation: "true"}, []int{2}},
		{"IPv6", ipfamily.OnlyIPv6, nil, []int{7}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			harness.Rotate(t, tc.slices...)
			harness.Slot(t)
			var out bytes.Buffer
			o := options(t, &out)
			o.Lab.Mode, o.Lab.IPFamilies, o.Lab.BerthdEnv, o.Lab.AmazonVPCCNI = lab.NodeMode, tc.families, tc.env, amazonVPCCNI(t)
			prove(t, o, &out, len(migrationProofs))
			t.Log(out.String())
		})
	}
}
