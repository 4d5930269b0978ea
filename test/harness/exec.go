package harness

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/lab/network/ns"
	"github.com/berthnet/berth/internal/lab/run/node"
)

// Exec starts the plugin on a node as the CNI protocol says, without a library
// that would refuse to send what is wrong. It returns what it printed, and the
// error that it printed if it failed.
func Exec(t *testing.T, n *node.Node, stdin string, env ...string) (stdout []byte, failure *types.Error) {
	t.Helper()
	var out, diag bytes.Buffer
	cmd := exec.Command(filepath.Join(BinDir, "berth"))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewBufferString(stdin), &out, &diag
	cmd.Env = append([]string{"CNI_PATH=" + n.CNIBinDir()}, env...)
	if err := ns.Do(n.Netns, cmd.Run); err == nil {
		return out.Bytes(), nil
	}
	failure = &types.Error{}
	if err := json.Unmarshal(out.Bytes(), failure); err != nil {
		t.Fatalf("the plugin failed and printed no CNI error: %q, on stderr %q", out.String(), diag.String())
	}
	if diag.Len() > 0 {
		t.Errorf("the plugin printed on stderr: %q", diag.String())
	}
	return nil, failure
}
