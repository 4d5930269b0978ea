//go:build e2e

package cluster

import (
	"slices"
	"testing"

	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/host"
)

// Modes of a trouble: what is the same in all of them is brought in one.
var (
	inAll       = lab.Modes
	withOwn     = []lab.Mode{lab.NodeMode, lab.OperatorMode, lab.PoolMode} // addresses are Berth's to give
	inVPC       = []lab.Mode{lab.NodeMode, lab.OperatorMode}
	withCluster = []lab.Mode{lab.OperatorMode, lab.PoolMode}
	inOperator  = []lab.Mode{lab.OperatorMode}
	inPort      = []lab.Mode{lab.PortMode}
)

// trouble is a fault, or a check of the cluster at rest.
type trouble struct {
	name  string
	in    []lab.Mode
	bring func(t *testing.T, w *world)
}

// looks are checks of a cluster at rest, with the tools for troubleshooting.
var looks = []trouble{
	{"chained plugins", withOwn, chainedPlugins}, // no node sees the packets of a port to forward those of a host port
	{"kubectl berth", withOwn, kubectlBerth},
	{"support bundle", withOwn, supportBundle},
	{"webhook", inPort, webhookRefuses},
	{"VPC of a namespace", inPort, namespacesVPC},
	{"probes", inPort, probesAndRoutes},
}

// troubles are faults, in their order. Each function repairs what it broke.
var troubles = []trouble{
	{"upgrade and rollback", inAll, upgrade}, // to the first revision
	{"kubelet killed", inOperator, kubeletDies},
	{"containerd killed in a burst", inAll, containerdDies},
	{"API server away", inAll, apiServerAway},
	{"operator away", withCluster, operatorAway},
	{"operator of ports away", inPort, portOperatorAway},
	{"security groups", inPort, groupsChange},
	{"no room for records", inOperator, fullState},
	{"no room for the plugin", inOperator, fullPlugins},
	{"image of another architecture", inOperator, foreignImage},
	{"definition of a kind deleted", inOperator, missingKind},
	{"older definition of a kind", inOperator, olderKind},
	{"roles taken away", inOperator, missingRole},
	{"sources of packets", inVPC, sources}, // a data centre's router does not look at them
}

// TestTrouble checks one cluster for each mode, and brings faults to it in turn. The nodes of one cluster have only
// the CNI plugins that come with Berth. After each fault nodes and pods are Ready, and pods, daemons and cloud agree
// on every address.
func TestTrouble(t *testing.T) {
	for _, mode := range inAll {
		t.Run(string(mode), func(t *testing.T) {
			w := raise(t, lab.Options{Mode: mode, OperatorCount: 2, Kubelets: &lab.Kubelets{Proxy: host.NFTables, NoCNIPlugins: mode == lab.NodeMode}})
			for _, trouble := range slices.Concat(looks, troubles) {
				if !slices.Contains(trouble.in, mode) {
					continue
				}
				if !t.Run(trouble.name, func(t *testing.T) { trouble.bring(t, w) }) {
					return // what is broken may not have been put right
				}
			}
		})
	}
}
