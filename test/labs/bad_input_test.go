package labs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// TestBadNetworkNamespacesAreRejected passes paths that only the daemon can reject. The error names
// the path, and nothing is left. TestBadConfiguration and TestBadEnvironment have what the plugin
// itself rejects.
func TestBadNetworkNamespacesAreRejected(t *testing.T) {
	t.Parallel()
	l := harness.RaiseQuick(t, lab.NodeMode, lab.Options{Nodes: 1, InstanceType: "t3.small"})
	n := l.Nodes()[0]
	s := harness.NewSandbox(t, n)
	list := harness.Network(t, "1.0.0", "berth", harness.Plugin(n, nil))
	file := filepath.Join(t.TempDir(), "file")
	harness.OK(t, os.WriteFile(file, nil, 0o600))
	fifo := filepath.Join(t.TempDir(), "fifo")
	harness.OK(t, syscall.Mkfifo(fifo, 0o600))
	for name, tt := range map[string]struct {
		path string
		code uint
		want []string
	}{
		"not there":      {"/run/netns/no-such", 0, nil},
		"a file":         {file, 0, nil},
		"a FIFO":         {fifo, types.ErrInvalidNetNS, []string{"a FIFO", "is not a network namespace"}},
		"the node's own": {n.Netns, types.ErrInvalidNetNS, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s.NetNS = tt.path
			_, err := s.Add(t, list)
			code := tt.code
			if code == 0 { // the specification has no code of its own; skel and the daemon choose
				code = node.CNICode(err)
			}
			harness.Fails(t, err, code, append(tt.want, tt.path)...)
			if code == types.ErrInternal {
				t.Errorf("an internal error: %v", err)
			}
		})
	}
	if doc := harness.Document(t, n); len(doc.Allocated)+len(doc.Cooling) > 0 {
		t.Errorf("bad input left %v allocated, %v cooling", doc.Allocated, doc.Cooling)
	}
	harness.Settle(t, l)
}

// TestBadSettingsEndTheDaemon starts daemons with settings that are rejected: they end at once,
// name each of these with the reason, and leave nothing. Package config has all reasons.
func TestBadSettingsEndTheDaemon(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ args, env, want []string }{
		"a flag and a variable": {[]string{"--mtu=9"}, []string{"BERTH_EXCLUDE_SNAT_CIDRS=10.0.0.0"}, []string{"--mtu", "576", "BERTH_EXCLUDE_SNAT_CIDRS", "CIDR"}},
		"failpoints":            {nil, []string{"BERTH_FAILPOINTS=nowhere=kill"}, []string{"BERTH_FAILPOINTS", "nowhere"}},
		"an argument":           {[]string{"serve"}, nil, []string{"serve"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state := t.TempDir()
			args := append([]string{"--state-dir=" + state, "--socket=" + state + "/s"}, tt.args...)
			cmd := exec.CommandContext(harness.Deadline(t, patience), filepath.Join(harness.BinDir, "berthd"), args...)
			cmd.Env = append(os.Environ(), tt.env...)
			out, err := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); err == nil || code < 1 {
				t.Fatalf("exit status %d (%v): %s", code, err, out)
			}
			if !harness.Says(string(out), tt.want...) {
				t.Errorf("it does not say all of %q:\n%s", tt.want, out)
			}
			if left, _ := os.ReadDir(state); len(left) > 0 {
				t.Errorf("left %v", fmt.Sprint(left))
			}
		})
	}
}
