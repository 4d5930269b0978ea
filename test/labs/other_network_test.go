package labs

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/lab/run/poll"
	"github.com/berthnet/berth/lab/run/proc"
	"github.com/berthnet/berth/test/harness"
)

// reference is the distribution's folder of reference plugins, which speak CNI up to 1.0.0.
const reference = "/usr/lib/cni"

// newer is a folder of reference plugins that speak 1.1.0.
func newer(t *testing.T) (dir string) {
	t.Helper()
	for _, name := range []string{"host-local", "ptp"} { // both in one folder
		cmd := exec.CommandContext(t.Context(), filepath.Join(harness.Tree(), "hack/tool.sh"), "cniplugins", name)
		cmd.Stderr = os.Stderr
		path, err := cmd.Output()
		harness.OK(t, err)
		dir = filepath.Dir(strings.TrimSpace(string(path)))
	}
	return dir
}

// host is a node of another network, with a berthd without addresses.
type host struct {
	t      *testing.T
	dir    string
	url    string // of /ip-manager
	daemon *proc.Process
	cni    *libcni.CNIConfig
	cache  string // the runtime's
}

func newHost(t *testing.T) *host {
	h := &host{t: t, dir: t.TempDir()}
	harness.OK(t, os.MkdirAll(h.bin(), 0o755))
	for _, name := range []string{"ptp", "host-local", "portmap"} {
		harness.OK(t, os.Symlink(filepath.Join(reference, name), filepath.Join(h.bin(), name)))
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	harness.OK(t, err)
	address := l.Addr().String()
	harness.OK(t, l.Close())
	h.url = "http://" + address
	h.daemon = proc.New("berthd", filepath.Join(h.dir, "log"), func() proc.Command {
		return proc.Command{Path: filepath.Join(harness.BinDir, "berthd"), Args: []string{
			"--ipam=none", "--egress", "--kubeconfig=" + harness.ControlPlane.AdminKubeconfig(), "--node-name=n1",
			"--state-dir=" + h.dir, "--socket=" + h.socket(), "--introspection-address=" + address, "--metrics-address=",
			"--install-cni", "--cni-bin-dir=" + h.bin(), "--cni-conf-dir=" + h.conf(), "--cni-plugin=" + filepath.Join(harness.BinDir, "berth"),
		}}
	})
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(h.daemon.LogTail(40))
		}
		if h.daemon.Running() {
			harness.OK(t, h.daemon.Stop(harness.Patience))
		}
	})
	h.cache = t.TempDir()
	h.cni = h.runtime()
	return h
}

// runtime is a container runtime that looks for plugins in further folders first.
func (h *host) runtime(more ...string) *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir(append(more, h.bin()), h.cache, nil)
}

func (h *host) bin() string    { return filepath.Join(h.dir, "bin") }
func (h *host) conf() string   { return filepath.Join(h.dir, "net.d") }
func (h *host) socket() string { return filepath.Join(h.dir, "berthd.sock") }

// get reads a document of the daemon.
func (h *host) get(ctx context.Context, path string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.url+path, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(into)
}

// start starts the daemon and waits until it serves.
func (h *host) start() {
	h.t.Helper()
	harness.OK(h.t, h.daemon.Start())
	harness.OK(h.t, poll.Until(harness.Deadline(h.t, harness.Patience), func() error {
		var doc introspect.Document
		return h.get(h.t.Context(), introspect.Path, &doc)
	}))
}

// shows waits until a condition has a status and says something.
func (h *host) shows(kind, status, says string) {
	h.t.Helper()
	harness.OK(h.t, poll.Until(harness.Deadline(h.t, harness.Patience), func() error {
		var doc introspect.Document
		if err := h.get(h.t.Context(), introspect.Path, &doc); err != nil {
			return err
		}
		for _, c := range doc.Conditions {
			if c.Type == kind && c.Status == status && strings.Contains(c.Message, says) {
				return nil
			}
		}
		return fmt.Errorf("conditions are %+v", doc.Conditions)
	}))
}

// list is the other network's configuration, with more plugins at its end.
func (h *host) list(version string, more ...map[string]any) *libcni.NetworkConfigList {
	h.t.Helper()
	ipam := map[string]any{
		"type": "host-local", "dataDir": filepath.Join(h.dir, "leases"),
		"ranges": []any{[]any{map[string]any{"subnet": "10.244.7.0/24"}}, []any{map[string]any{"subnet": "fd00:244:7::/64"}}},
		"routes": []any{map[string]any{"dst": "0.0.0.0/0"}, map[string]any{"dst": "::/0"}},
	}
	other := map[string]any{"type": "ptp", "mtu": 1450, "ipam": ipam, "dns": map[string]any{"nameservers": []any{"10.0.0.2"}}}
	return harness.Network(h.t, version, "other", append([]map[string]any{other}, more...)...)
}

func (h *host) berth() map[string]any {
	return map[string]any{"type": "berth", "socket": h.socket(), "capabilities": map[string]any{"io.kubernetes.cri.pod-annotations": true}}
}

// sandbox is a pod's empty namespace.
func (h *host) sandbox() *libcni.RuntimeConf {
	h.t.Helper()
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	id := hex.EncodeToString(b)
	name := "berth-chained-" + id[:8]
	harness.OK(h.t, ns.Create(name))
	h.t.Cleanup(func() { harness.OK(h.t, ns.Remove(name)) })
	return &libcni.RuntimeConf{
		ContainerID: id, NetNS: ns.Path(name), IfName: "eth0",
		Args:           [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", "p-" + id[:8]}, {"K8S_POD_UID", id}},
		CapabilityArgs: map[string]any{"io.kubernetes.cri.pod-annotations": map[string]string{}},
	}
}

// linkNames are the names of the links in a namespace.
func linkNames(t *testing.T, netns string) (names []string) {
	t.Helper()
	harness.OK(t, ns.Netlink(netns, func(h *netlink.Handle) error {
		all, err := h.LinkList()
		for _, l := range all {
			names = append(names, l.Attrs().Name)
		}
		return err
	}))
	return names
}

// value is a result as the runtime gets it.
func value(t *testing.T, r types.Result) (v any) {
	t.Helper()
	data, err := json.Marshal(r)
	harness.OK(t, errors.Join(err, json.Unmarshal(data, &v)))
	return v
}

// TestBerthAfterAnotherNetwork has berth behind the plugins of another network, for egress
// only. Tests that need tunnels are in other_network_egress_guest_test.go.
func TestBerthAfterAnotherNetwork(t *testing.T) {
	t.Parallel()
	harness.StartKube(t)
	t.Run("verbs", verbsAfterAnotherNetwork)
	t.Run("installation", installationBesideAnotherNetwork)
	t.Run("first of a list", firstOfAList)
}

// verbsAfterAnotherNetwork runs each verb in each version of the CNI specification, with berth
// at the end of another network's list and a restart of the daemon in between. The result is
// the other network's.
func verbsAfterAnotherNetwork(t *testing.T) {
	h := newHost(t)
	h.start()
	h.shows("ChainComplete", introspect.False, `there is no network configuration`)
	harness.OK(t, os.MkdirAll(h.conf(), 0o755))
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Run(version, func(t *testing.T) {
			if version == "1.1.0" {
				h.cni = h.runtime(newer(t))
			}
			ctx := harness.Deadline(t, harness.Patience)
			list := h.list(version, h.berth())
			rt := h.sandbox()
			result, err := h.cni.AddNetworkList(ctx, list, rt)
			harness.OK(t, err)
			before := linkNames(t, rt.NetNS)

			alone, other := h.list(version), h.sandbox()
			alone.Name = "alone"
			want, err := h.cni.AddNetworkList(ctx, alone, other)
			harness.OK(t, err)
			if diff := cmp.Diff(shapeOf(value(t, want)), shapeOf(value(t, result))); diff != "" {
				t.Errorf("the result is not as it is without berth (-without +with):\n%s", diff)
			}
			if diff := cmp.Diff(linkNames(t, other.NetNS), before); diff != "" {
				t.Errorf("the pod's links are not as they are without berth (-without +with):\n%s", diff)
			}
			harness.OK(t, h.cni.DelNetworkList(ctx, alone, other))

			harness.OK(t, h.daemon.Kill())
			h.start()
			if version >= "0.4.0" {
				harness.OK(t, h.cni.CheckNetworkList(ctx, list, rt))
			}
			var pod introspect.Pod
			harness.OK(t, h.get(ctx, introspect.PodPath+"?namespace=default&name="+rt.Args[2][1], &pod))
			if len(pod.Attachments) != 1 || !strings.HasPrefix(pod.Attachments[0].Address.String(), "10.244.7.") || pod.Attachments[0].Egress != nil || pod.Attachments[0].Fault != "" {
				t.Errorf("berthd knows of %+v", pod.Attachments)
			}
			if version >= "1.1.0" {
				harness.OK(t, h.cni.GetStatusNetworkList(ctx, list))
				keep := []types.GCAttachment{{ContainerID: rt.ContainerID, IfName: rt.IfName}}
				harness.OK(t, h.cni.GCNetworkList(ctx, list, &libcni.GCArgs{ValidAttachments: keep}))
				harness.OK(t, h.cni.CheckNetworkList(ctx, list, rt))
			}
			harness.OK(t, h.cni.DelNetworkList(ctx, list, rt))
			harness.OK(t, h.cni.DelNetworkList(ctx, list, rt))
			if version >= "0.4.0" {
				if err := h.cni.CheckNetworkList(ctx, list, rt); err == nil {
					t.Error("CHECK of a pod that went works")
				}
			}
			harness.OK(t, h.get(ctx, introspect.PodPath+"?namespace=default&name="+rt.Args[2][1], &pod))
			if len(pod.Attachments) != 0 {
				t.Errorf("berthd still knows of %+v", pod.Attachments)
			}
		})
	}
	// GC removes what it does not name, and the other network may reuse the address.
	ctx := harness.Deadline(t, harness.Patience)
	list, rt := h.list("1.1.0", h.berth()), h.sandbox()
	_, err := h.cni.AddNetworkList(ctx, list, rt)
	harness.OK(t, err)
	harness.OK(t, h.cni.GCNetworkList(ctx, list, &libcni.GCArgs{}))
	var doc introspect.Document
	harness.OK(t, h.get(ctx, introspect.Path, &doc))
	if doc.IPAM != "none" || len(doc.Allocated) != 0 || doc.Totals.Cooling != 0 {
		t.Errorf("the document is %+v", doc)
	}
}

// shapeOf is a result without what differs between pods: addresses, MACs, paths and names of host
// links.
func shapeOf(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for key, one := range v {
			switch key {
			case "address", "mac", "sandbox", "socketPath":
				one = "some"
			case "name":
				if name, _ := one.(string); strings.HasPrefix(name, "veth") {
					one = "veth"
				}
			}
			out[key] = shapeOf(one)
		}
		return out
	case []any:
		var out []any
		for _, one := range v {
			out = append(out, shapeOf(one))
		}
		return out
	}
	return v
}

// installationBesideAnotherNetwork installs the plugin without a configuration. A condition
// says what to add to the other network's until it is there.
func installationBesideAnotherNetwork(t *testing.T) {
	h := newHost(t)
	harness.OK(t, os.MkdirAll(h.conf(), 0o755))
	other := filepath.Join(h.conf(), "50-other.conflist")
	harness.OK(t, os.WriteFile(other, h.list("1.0.0").Bytes, 0o600))
	h.start()
	h.shows("ChainComplete", introspect.False, other)
	h.shows("ChainComplete", introspect.False, `"capabilities":{"io.kubernetes.cri.pod-annotations":true}`)
	if _, err := os.Stat(filepath.Join(h.bin(), "berth")); err != nil {
		t.Error(err)
	}
	harness.OK(t, os.WriteFile(other, h.list("1.0.0", h.berth()).Bytes, 0o600))
	harness.OK(t, h.daemon.Stop(harness.Patience))
	h.start()
	h.shows("ChainComplete", introspect.True, "")
	files, err := os.ReadDir(h.conf())
	harness.OK(t, err)
	if len(files) != 1 {
		t.Errorf("configurations are %v", files)
	}
}

// firstOfAList expects ADD to fail where no other network comes before berth.
func firstOfAList(t *testing.T) {
	h := newHost(t)
	h.start()
	h.shows("ChainComplete", introspect.False, "")
	rt := h.sandbox()
	list := harness.Network(t, "1.0.0", "berth", h.berth())
	ctx := harness.Deadline(t, harness.Patience)
	_, err := h.cni.AddNetworkList(ctx, list, rt)
	if node.CNICode(err) != types.ErrInvalidNetworkConfig || !strings.Contains(err.Error(), "at the end of another network's list") {
		t.Errorf("ADD says %v", err)
	}
	harness.OK(t, h.cni.DelNetworkList(ctx, list, rt))
	if got := linkNames(t, rt.NetNS); len(got) != 1 {
		t.Errorf("the namespace has %v", got)
	}
}
