package demo

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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

// legacyIPTables is a PATH with the programs of iptables-legacy as iptables.
func legacyIPTables(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, program := range []string{"iptables", "iptables-save", "iptables-restore", "ip6tables"} {
		name, suffix, _ := strings.Cut(program, "-")
		if suffix != "" {
			suffix = "-" + suffix
		}
		legacy, err := exec.LookPath(name + "-legacy" + suffix)
		harness.OK(t, err)
		harness.OK(t, os.Symlink(legacy, filepath.Join(dir, program)))
	}
	return dir + ":" + os.Getenv(programPath)
}

// A node moves from the real Amazon VPC CNI to Berth and back under connections, and the tool is killed at every step: with
// secondary addresses on two ENIs, with a /28 prefix, with IPv6, with ENIs of another subnet, and with iptables-legacy. Pods'
// host ports go on working.
func TestMigrationFromAmazonVPCCNI(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name     string
		families ipfamily.Set
		env      map[string]string
		args     []string
		slices   []int
	}{
		{"secondary addresses", ipfamily.OnlyIPv4, nil, nil, []int{1}},
		{"prefixes", ipfamily.OnlyIPv4, map[string]string{prefixDelegation: "true"}, nil, []int{2}},
		{"IPv6", ipfamily.OnlyIPv6, nil, nil, []int{7}},
		{"custom networking and host ports", ipfamily.OnlyIPv4, map[string]string{customNetworking: "true"}, []string{portmapChained}, []int{3}},
		{"iptables-legacy and host ports", ipfamily.OnlyIPv4, map[string]string{programPath: legacyIPTables(t)}, []string{portmapChained}, []int{8}},
		{"iptables-legacy and external SNAT", ipfamily.OnlyIPv4, map[string]string{programPath: legacyIPTables(t), externalSNAT: "true"}, nil, []int{6}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			harness.Rotate(t, tc.slices...)
			harness.Slot(t)
			var out bytes.Buffer
			o := options(t, &out)
			o.Lab.Mode, o.Lab.IPFamilies, o.Lab.BerthdEnv, o.Lab.DaemonArgs, o.Lab.AmazonVPCCNI = lab.NodeMode, tc.families, tc.env, tc.args, amazonVPCCNI(t)
			prove(t, o, &out, len(migrationProofs))
			t.Log(out.String())
		})
	}
}
