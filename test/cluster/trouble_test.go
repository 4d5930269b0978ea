//go:build e2e

package cluster

import (
	"slices"
	"testing"

	"github.com/berthnet/berth/internal/lab"
	"github.com/berthnet/berth/internal/lab/run/host"
)

// trouble is what happens to a cluster, and is put right again by who brings it.
type trouble struct {
	name  string
	bring func(t *testing.T, w *world)
}

// everywhere are troubles that differ between kinds of addresses.
var everywhere = []trouble{
	{"upgrade and rollback", upgrade},
	{"containerd killed in a burst", containerdDies},
	{"API server away", apiServerAway},
	{"operator away", operatorAway},
	{"sources of packets", sources},
	{"node rebooted", nodeReboots},
}

// once are troubles that are the same with all of them.
var once = []trouble{
	{"kubelet killed", kubeletDies},
	{"no room for records", fullState},
	{"no room for the plugin", fullPlugins},
	{"image of another architecture", foreignImage},
	{"definition of a kind deleted", missingKind},
	{"older definition of a kind", olderKind},
	{"roles taken away", missingRole},
}

// TestTrouble has one cluster for each kind of addresses, to which troubles happen in
// turn. After each nothing is lost: nodes and pods are Ready, and pods, daemons and
// cloud agree on every address.
func TestTrouble(t *testing.T) {
	for _, tc := range []struct {
		mode     lab.Mode
		troubles []trouble
	}{
		{lab.NodeMode, everywhere},
		{lab.OperatorMode, slices.Concat(once, everywhere)},
		{lab.PoolMode, everywhere},
	} {
		t.Run(string(tc.mode), func(t *testing.T) {
			w := raise(t, lab.Options{Mode: tc.mode, OperatorCount: 2, Kubelets: &lab.Kubelets{Proxy: host.NFTables}})
			for _, trouble := range tc.troubles {
				if !t.Run(trouble.name, func(t *testing.T) { trouble.bring(t, w) }) {
					return // what is broken may not have been put right
				}
			}
		})
	}
}
