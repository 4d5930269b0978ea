package labs

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berthnet/berth/internal/ctl/bundle/archive"
	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/run/node"
	"github.com/berthnet/berth/test/harness"
)

// planted is part of every secret that the test puts where a bundle looks.
const planted = "Planted7Secret"

// TestSupportBundleHidesSecrets covers node mode, TestKubectlBerthAgreesWithTheCluster the other
// modes.
func TestSupportBundleHidesSecrets(t *testing.T) {
	t.Parallel()
	supportBundle(t, harness.RaiseQuick(t, lab.NodeMode, lab.Options{Nodes: 1, InstanceType: "t3.small"}).Nodes()[0])
}

// supportBundle collects a bundle on a node with secrets in every kind of place. It has everything
// except the secrets. The node takes no pods afterwards.
func supportBundle(t *testing.T, n *node.Node) {
	t.Helper()
	harness.Ready(t, n)
	pod := harness.Add(t, n, "web")
	root := plant(t, n)
	path := filepath.Join(t.TempDir(), "bundle.tar.gz")
	said := makeBundle(t, n, "--output", path, "--root", root)
	data, err := os.ReadFile(path)
	harness.OK(t, err)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	files, index, err := archive.Open(bytes.NewReader(data))
	harness.OK(t, err)
	routes := []string{"table 19000 proto 190"}
	var addrs []string
	for _, a := range pod.Addrs {
		addrs, routes = append(addrs, a.String()), append(routes, fmt.Sprintf("%s/%d dev bth", a, a.BitLen()))
	}
	holds(t, files, map[string][]string{
		"settings.json":                {`"name": "state-dir"`, n.StateDir(), `"from": "--state-dir"`},
		"ip-manager.json":              append(addrs, `"totals"`),
		"readyz.txt":                   {"ok"},
		"metrics.txt":                  {"berth_addresses{", "berth_cni_requests_total"},
		"kernel/links.txt":             {"bth", "type veth"},
		"kernel/routes.txt":            routes,
		"kernel/rules.txt":             {"512: from all lookup 19000"},
		"kernel/neighbours.txt":        {"# IPv4"},
		"kernel/nftables.txt":          {"table inet berth {", "chain antispoof"},
		"kernel/iptables.txt":          {"iptables-legacy"},
		"kernel/sysctls.txt":           {"net/ipv4/ip_forward = 1"},
		"state.txt":                    {"berthd.sock", "attachments"},
		"cni/10-berth.conflist":        {`"type": "berth"`},
		"cni/05-others.conflist":       {`"type": "others"`, "stays"},
		"cni/others.d/kubeconfig":      {"clusters", "stays"},
		"cni-plugins.txt":              {"berth"},
		"system/mounts.txt":            {"/proc"},
		"system/disks.txt":             {n.StateDir()},
		"logs/pods/" + logOf + "0.log": {"a pod came", "stays"},
		"errors.txt":                   {"runtime: "},
	})
	if !slices.ContainsFunc(index.Files, func(f archive.File) bool { return strings.HasPrefix(f.Name, "state/attachments/attachment-bth") }) {
		t.Error("there is no record of the pod's")
	}
	for name, content := range files {
		if bytes.Contains(content, []byte(planted)) {
			t.Errorf("%s has a secret:\n%s", name, content)
		}
	}
	if index.Version == "" || index.Ended.Before(index.Begun) || len(index.Files) != len(files)-2 || !strings.Contains(said, "runtime: ") {
		t.Errorf("index %+v; said %s", index, said)
	}
	if strings.Contains(said, planted) {
		t.Errorf("a secret is told:\n%s", said)
	}
}

// TestSupportBundleWithoutDaemon collects a bundle of a node whose daemon is dead.
func TestSupportBundleWithoutDaemon(t *testing.T) {
	t.Parallel()
	l := harness.Raise(t, lab.Options{Nodes: 1, InstanceType: "t3.small", DaemonArgs: prompt})
	n := l.Nodes()[0]
	harness.Add(t, n, "web")
	harness.OK(t, n.Kill())
	path := filepath.Join(t.TempDir(), "bundle.tar.gz")
	said := makeBundle(t, n, "--output", path, "--state-dir", n.StateDir(), "--cni-conf-dir", n.ConfDir())
	f, err := os.Open(path)
	harness.OK(t, err)
	defer f.Close()
	files, _, err := archive.Open(f)
	harness.OK(t, err)
	holds(t, files, map[string][]string{
		"kernel/routes.txt": {"table 19000 proto 190"}, "cni/10-berth.conflist": {`"type": "berth"`}, "state/inventory.json": {"instanceID"},
		"errors.txt": {"introspection: ", "metrics: ", "connection refused"}, "settings.json": {"default of --state-dir"},
	})
	if !strings.Contains(said, "connection refused") {
		t.Errorf("said %s", said)
	}
}

func makeBundle(t *testing.T, n *node.Node, args ...string) (said string) {
	t.Helper()
	cmd := exec.Command(filepath.Join(harness.BinDir, "berthctl"), append([]string{"support-bundle", "--timeout=1m"}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG=")
	var out []byte
	err := ns.Do(n.Netns, func() (err error) { out, err = cmd.CombinedOutput(); return err })
	if err != nil {
		t.Fatalf("berthctl support-bundle %v: %v\n%s", args, err, out)
	}
	return string(out)
}

func holds(t *testing.T, files map[string][]byte, want map[string][]string) {
	t.Helper()
	for name, parts := range want {
		content, ok := files[name]
		if !ok {
			t.Errorf("there is no %s; errors: %s", name, files[archive.ErrorsFile])
			continue
		}
		for _, part := range parts {
			if !bytes.Contains(content, []byte(part)) {
				t.Errorf("%s lacks %q:\n%s", name, part, content)
			}
		}
	}
}

// logOf is the folder of a log below /var/log/pods.
const logOf = "kube-system_berthd-x_uid/berthd/"

// plant puts secrets into each kind of file, and returns a root with the node's paths and a kubelet's
// logs.
func plant(t *testing.T, n *node.Node) (root string) {
	t.Helper()
	root = t.TempDir()
	top := strings.Split(n.Dir, "/")[1]
	harness.OK(t, os.Symlink("/"+top, filepath.Join(root, top)))
	const key = "-----BEGIN EC PRIVATE KEY-----\n" + planted + planted + "\n-----END EC PRIVATE KEY-----\n"
	for path, content := range map[string]string{
		filepath.Join(n.ConfDir(), "05-others.conflist.disabled"): "TOKEN=" + planted,
		filepath.Join(n.ConfDir(), "05-others.conflist"):          fmt.Sprintf(`{"name":"stays","plugins":[{"type":"others","etcd_password":%q,"policy":{"k8s_auth_token":%q}}],"url":"https://u:%s@etcd"}`, planted, planted, planted),
		filepath.Join(n.ConfDir(), "others.d", "kubeconfig"):      "kind: Config\nclusters: [{name: stays}]\nusers:\n- user:\n    token: " + planted + "\n    client-key-data: |\n      " + planted + "\n",
		filepath.Join(n.ConfDir(), "others.d", "client.key"):      key,
		filepath.Join(n.StateDir(), "damaged.json"):               `{"version":1,"password":"` + planted,
		filepath.Join(root, "var/log/pods", logOf, "0.log"): "2026-01-01T00:00:00Z stderr F level=INFO msg=\"a pod came\" err=\"Authorization: Bearer " + planted + "\" aws_secret_access_key=" + planted + "\n" +
			"2026-01-01T00:00:00Z stderr F {\"msg\":\"x\",\"apiKey\":\"" + planted + "\"} stays\n" + key + "GET https://s3/?X-Amz-Signature=" + planted + "\n",
		filepath.Join(root, "var/log/pods/default_others_uid/x/0.log"): "not ours " + planted + "\n",
		filepath.Join(root, "etc/hosts"):                               "10.0.0.1 a # password: " + planted + "\n",
	} {
		harness.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
		harness.OK(t, os.WriteFile(path, []byte(content), 0o600))
	}
	return root
}
