package harness

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab/run/node"
)

// Sandbox is a pod's empty network namespace on a node, for CNI calls of a test. The lab does not know
// it: the test deletes its network before Settle.
type Sandbox struct {
	*libcni.RuntimeConf
	Node *node.Node
	CNI  *libcni.CNIConfig // a runtime of the test's own
	name string            // of the namespace
}

// NewSandbox makes a sandbox, which is removed when the test ends.
func NewSandbox(t *testing.T, n *node.Node) *Sandbox {
	t.Helper()
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	id := hex.EncodeToString(b)
	name := n.PodPrefix + "sb-" + id[:8]
	if err := ns.Create(name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ns.Remove(name); err != nil {
			t.Error(err)
		}
	})
	return &Sandbox{
		Node: n, CNI: n.Runtime(t.TempDir()), name: name,
		RuntimeConf: &libcni.RuntimeConf{
			ContainerID: id, NetNS: ns.Path(name), IfName: "eth0",
			Args: [][2]string{
				{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", "sb-" + id[:8]},
				{"K8S_POD_INFRA_CONTAINER_ID", id}, {"K8S_POD_UID", "uid-" + id[:8]},
			},
			CapabilityArgs: map[string]any{"io.kubernetes.cri.pod-annotations": map[string]string{"kubernetes.io/config.source": "api"}},
		},
	}
}

// Add sends an ADD.
func (s *Sandbox) Add(t *testing.T, list *libcni.NetworkConfigList) (types.Result, error) {
	t.Helper()
	return s.CNI.AddNetworkList(Deadline(t, Patience), list, s.RuntimeConf)
}

// Del sends a DEL.
func (s *Sandbox) Del(t *testing.T, list *libcni.NetworkConfigList) error {
	t.Helper()
	return s.CNI.DelNetworkList(Deadline(t, Patience), list, s.RuntimeConf)
}

// Check sends a CHECK.
func (s *Sandbox) Check(t *testing.T, list *libcni.NetworkConfigList) error {
	t.Helper()
	return s.CNI.CheckNetworkList(Deadline(t, Patience), list, s.RuntimeConf)
}

// Status sends a STATUS.
func (s *Sandbox) Status(t *testing.T, list *libcni.NetworkConfigList) error {
	t.Helper()
	return s.CNI.GetStatusNetworkList(Deadline(t, Patience), list)
}

// Vanish removes the namespace without a CNI call.
func (s *Sandbox) Vanish(t *testing.T) {
	t.Helper()
	if err := ns.Remove(s.name); err != nil {
		t.Fatal(err)
	}
}

// Do runs fn in the sandbox.
func (s *Sandbox) Do(t *testing.T, fn func() error) {
	t.Helper()
	if err := ns.Do(s.NetNS, fn); err != nil {
		t.Fatal(err)
	}
}

// Plugin is berth's part of a network configuration for a node, with changes.
func Plugin(n *node.Node, change map[string]any) map[string]any {
	p := map[string]any{"type": "berth", "socket": n.Socket()}
	for k, v := range change {
		p[k] = v
	}
	return p
}

// Network is a configuration list.
func Network(t *testing.T, version, name string, plugins ...map[string]any) *libcni.NetworkConfigList {
	t.Helper()
	data, err := json.Marshal(map[string]any{"cniVersion": version, "name": name, "plugins": plugins})
	if err != nil {
		t.Fatal(err)
	}
	list, err := libcni.NetworkConfFromBytes(data)
	if err != nil {
		t.Fatal(err)
	}
	return list
}
