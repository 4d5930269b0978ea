//go:build e2e

package cluster

import (
	"os"
	"slices"
	"testing"

	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/host"
)

// Modes of a trouble. A fault with the same effect in all modes is tested in one.
var (
	inAll       = lab.Modes
	withOwn     = []lab.Mode{lab.NodeMode, lab.OperatorMode, lab.PoolMode} // Berth allocates the addresses
	inVPC       = []lab.Mode{lab.NodeMode, lab.OperatorMode}
	withCluster = []lab.Mode{lab.OperatorMode, lab.PoolMode}
	inNode      = []lab.Mode{lab.NodeMode}
	inOperator  = []lab.Mode{lab.OperatorMode}
	inPort      = []lab.Mode{lab.PortMode}
)

// trouble is a fault, or a check of the cluster at rest.
type trouble struct {
	name  string
	in    []lab.Mode
	bring func(t *testing.T, w *world)
}

// upgrades are the first steps of a cluster, which runs the previous release.
var upgrades = []trouble{{"upgrade and rollback", inAll, upgrade}}

// looks are checks of a cluster at rest, with the troubleshooting tools.
var looks = []trouble{
	{"chained plugins", withOwn, chainedPlugins}, // with ports, packets bypass the node, so host ports do not work
	{"kubectl berth", withOwn, kubectlBerth},
	{"support bundle", withOwn, supportBundle},
	{"webhook", inPort, webhookRefuses},
	{"VPC of a namespace", inPort, namespacesVPC},
	{"probes", inPort, probesAndRoutes},
}

// troubles are faults, in order. Each function repairs the damage it does.
var troubles = []trouble{
	{"kubelet killed", inOperator, kubeletDies},
	{"containerd killed in a burst", inAll, containerdDies},
	{"API server down", inAll, apiServerAway},
	{"operator down", withCluster, operatorAway},
	{"port operator down", inPort, portOperatorAway},
	{"security groups", inPort, groupsChange},
	{"no space for records", inOperator, fullState},
	{"no space for the plugin", inOperator, fullPlugins},
	{"image of another architecture", inOperator, foreignImage},
	{"CRD deleted", inOperator, missingKind},
	{"older CRD", inOperator, olderKind},
	{"role bindings deleted", inOperator, missingRole},
	{"install manifest", inNode, installManifest},
	{"source addresses", inVPC, sources}, // a data centre's router does not check them
}

// TestTrouble upgrades one cluster for each mode to this release, checks it, and injects faults in turn. The nodes of one cluster have only the
// CNI plugins that come with Berth. After each fault nodes and pods are Ready, and pods, daemons and cloud agree on
// every address.
func TestTrouble(t *testing.T) {
	for _, mode := range inAll {
		t.Run(string(mode), func(t *testing.T) {
			instance := ""
			if mode == lab.OperatorMode { // the default type may have all its addresses after the upgrade, when pods wait for the node's sake
				instance = "m5.xlarge"
			}
			w := raise(t, lab.Options{Mode: mode, InstanceType: instance, OperatorCount: 2, Kubelets: &lab.Kubelets{
				Release: os.Getenv(previousVariable), Proxy: host.NFTables, NoCNIPlugins: mode == lab.NodeMode, NodeGrace: kubernetesGrace,
			}})
			for _, trouble := range slices.Concat(upgrades, looks, troubles) {
				if !slices.Contains(trouble.in, mode) {
					continue
				}
				if !t.Run(trouble.name, func(t *testing.T) { trouble.bring(t, w) }) {
					return // the cluster may still be broken
				}
			}
		})
	}
}
