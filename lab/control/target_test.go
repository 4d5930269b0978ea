package control

import (
	"slices"
	"strings"
	"testing"
)

func TestAMachineHasOneSocket(t *testing.T) {
	t.Parallel()
	env := machineEnv([]string{"VPCLAB_NODE=node-1", "BERTH_SOCKET=/run/vpclab/lab/nodes/node-1/run/berthd.sock"})
	i := slices.IndexFunc(env, func(e string) bool { return strings.HasPrefix(e, "BERTH_SOCKET=") })
	if i < 0 || env[i] != "BERTH_SOCKET=/run/berth/berthd.sock" || !slices.Contains(env, "VPCLAB_NODE=node-1") {
		t.Errorf("%q: want the machine's own socket first", env)
	}
}
