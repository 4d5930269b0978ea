// Package trouble holds the tests of what goes wrong outside Berth, in every
// mode: bad input, a cloud that is away, refuses or is slow, an API server that is
// away, a node that others meddle with, NodeNetworks that make no sense. Each
// wants a clear CNI error, condition or event that tells what to do, nothing half
// set up, other nodes that do not notice, and recovery without a restart.
package trouble

import (
	"fmt"
	"os"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m, "berthd", "berth", "berth-operator")) }

const patience = harness.Patience

// lean keeps no more addresses than asked for.
var lean = []string{"--warm-ip-target=1", "--minimum-ip-target=1"}

// full wants an ADD to fail for want of an address, and the error to say all of
// words, if not at once: the daemon may still be trying when the first ADDs end.
func full(t *testing.T, n *node.Node, name string, words ...string) {
	t.Helper()
	failsAtLast(t, types.ErrTryAgainLater, append(words, "no address"), func() error { return harness.AddOnce(t, n, name) })
}

// failsAtLast wants a CNI error of a code that says all of words, if not at once.
func failsAtLast(t *testing.T, code uint, words []string, call func() error) {
	t.Helper()
	var err error
	harness.Eventually(t, patience, fmt.Sprintf("the error says %q", words), func() error {
		if err = call(); err == nil || node.CNICode(err) != code || harness.Says(err.Error(), words...) {
			return nil
		}
		return err
	})
	harness.Fails(t, err, code, words...)
}

// takesPods wants a good STATUS: a failing one would get the node's pods evicted.
func takesPods(t *testing.T, n *node.Node) {
	t.Helper()
	list := harness.Network(t, "1.1.0", "berth", harness.Plugin(n, nil))
	harness.OK(t, n.Runtime(t.TempDir()).GetStatusNetworkList(harness.Deadline(t, patience), list))
}
