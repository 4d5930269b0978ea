//go:build e2e

package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berthnet/berth/internal/ctl/bundle/archive"
	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/addons"
	"github.com/berthnet/berth/test/harness"
)

// planted is part of every secret planted in the cluster.
const planted = "Planted7Secret"

// tokens matches JSON web tokens, including those of service accounts.
var tokens = regexp.MustCompile(`eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}`)

// unseen matches parts that a bundle made from outside may lack (docs/troubleshoot/support.md).
var unseen = regexp.MustCompile(`the journal of the kubelet and the runtime|/dev/kmsg: |not visible in a container|see its enableSystemLogQuery`)

// supportBundle checks that a bundle contains everything listed in docs/troubleshoot/support.md, and no secrets.
func supportBundle(t *testing.T, w *world) {
	secrets := w.plant(t)
	pluginPath(t)
	file := filepath.Join(t.TempDir(), "bundle.tar.gz")
	t.Logf("%s", lastLines(w.kubectl(t, "berth", "support-bundle", "--all", "--output="+file), 12))
	data, err := os.ReadFile(file)
	harness.OK(t, err)
	files, index, err := archive.Open(bytes.NewReader(data))
	harness.OK(t, err)

	has := func(name string, words ...string) {
		t.Helper()
		content, ok := files[name]
		if !ok && len(words) > 0 {
			t.Errorf("%s is missing", name)
			return
		}
		for _, word := range words {
			if !strings.Contains(string(content), word) {
				t.Errorf("%s lacks %q:\n%.2000s", name, word, content)
			}
		}
	}
	for _, n := range w.Nodes() {
		pod, err := w.daemon(t.Context(), n.Name)
		harness.OK(t, err)
		h, err := w.Machine(n.Name)
		harness.OK(t, err)
		dir := "nodes/" + n.Name + "/"
		for name, words := range map[string][]string{
			"logs/" + pod.Name + "/berthd.log": {"level=INFO"},
			"settings.json":                    {`"name": "ipam"`, "environment variable BERTH_"},
			"metrics.txt":                      {"\nberth_addresses{", "\nprocess_cpu_seconds_total"},
			"ip-manager.json":                  {fmt.Sprintf(`"node": %q`, n.Name)},
			"readyz.txt":                       {"ok"},
			"kernel/links.txt":                 {"lo", "bth"},
			"kernel/routes.txt":                {"default"},
			"kernel/rules.txt":                 {"lookup"},
			"kernel/neighbours.txt":            {""},
			"kernel/nftables.txt":              {"kube-proxy"},
			"kernel/iptables.txt":              {""},
			"kernel/sysctls.txt":               {"ip_forward"},
			"state.txt":                        {"usable.json"},
			"state/usable.json":                {`"version"`},
			"cni.txt":                          {"10-berth.conflist"},
			"cni/10-berth.conflist":            {`"type": "berth"`},
			"cni/99-other.conflist":            {"othernet", "REDACTED"},
			"cni-plugins.txt":                  {"/opt/cni/bin/berth", "/opt/cni/bin/portmap"},
			"runtime.json":                     {`"version"`, `"containerd"`, h.Runtime.Version},
			"kubelet-healthz.txt":              {"ok"},
			"kubelet-config.json":              {"kubeletconfig", "cgroupDriver"},
			"system/disks.txt":                 {"bytes free"},
			"system/meminfo.txt":               {"MemAvailable"},
			"index.json":                       {`"files"`},
		} {
			has(dir+name, words...)
		}
	}
	version := w.kubectl(t, "get", "nodes", "--output=jsonpath={.items[0].status.nodeInfo.kubeletVersion}")
	for name, words := range map[string][]string{
		"cluster/version.json":                   {version},
		"cluster/nodes.yaml":                     {"name: " + calmNode, "name: " + brokenNode, "kubeletVersion: " + version, "containerRuntimeVersion"},
		"cluster/pods.txt":                       {inDefault + "/" + clientName},
		"cluster/pods.yaml":                      {"berthd"},
		"cluster/daemonsets.yaml":                {"name: berthd", "name: BERTH_"},
		"cluster/events.txt":                     {"planted: https://registry", "REDACTED"},
		"cluster/clusterroles.yaml":              {"berthd"},
		"cluster/customresourcedefinitions.yaml": map[bool][]string{true: nil, false: {"nodenetworks.berth.dev"}}[w.Mode == lab.NodeMode],
		"index.json":                             {`"scope": "cluster"`},
	} {
		has(name, words...)
	}
	switch w.Mode {
	case lab.OperatorMode:
		has("cluster/nodenetworks.yaml", "name: "+calmNode, "name: "+brokenNode)
	case lab.PoolMode:
		has("cluster/addresspools.yaml", "kind: AddressPool")
		has("cluster/addressblocks.yaml", "kind: AddressBlock")
	}
	if w.Mode != lab.NodeMode {
		w.operatorsAreIn(t, has)
	}
	for _, e := range index.Errors {
		if !unseen.MatchString(e.Error) {
			t.Errorf("part not collected: %s: %s", e.Part, e.Error)
		}
	}
	for name, content := range files {
		for _, secret := range secrets {
			if bytes.Contains(content, []byte(secret)) {
				t.Errorf("%s contains the secret %q", name, secret)
			}
		}
		if found := tokens.Find(content); found != nil {
			t.Errorf("%s contains the token %s", name, found)
		}
	}
}

// operatorsAreIn checks that the bundle has the logs and endpoints of each operator pod.
func (w *world) operatorsAreIn(t *testing.T, has func(name string, words ...string)) {
	t.Helper()
	pods := &corev1.PodList{}
	harness.OK(t, w.Kube.Client.List(t.Context(), pods, client.InNamespace(addons.Namespace), client.MatchingLabels{"app.kubernetes.io/name": operator}))
	if len(pods.Items) != w.OperatorCount {
		t.Errorf("%d operators, want %d", len(pods.Items), w.OperatorCount)
	}
	for _, p := range pods.Items {
		has("cluster/logs/"+p.Name+"/berth-operator.log", "level=INFO", "starting")
		has("cluster/operators/"+p.Name+"/settings.json", `"name": "leader-elect"`, "environment variable BERTH_")
		has("cluster/operators/"+p.Name+"/metrics.txt", "\nberth_operator_", "\nleader_election_master_status", "\nprocess_cpu_seconds_total")
		has("cluster/operators/"+p.Name+"/readyz.txt", "ok")
	}
	has("cluster/deployments.yaml", "name: "+operator)
	has("cluster/leases.yaml", "name: "+operator)
}

// plant plants secrets in the cluster and returns them.
func (w *world) plant(t *testing.T) []string {
	t.Helper()
	secrets := []string{planted}
	for _, n := range w.Nodes() {
		h, err := w.Machine(n.Name)
		harness.OK(t, err)
		// Sorted after Berth's configuration, so that no runtime uses it.
		sh(t, h, `cat >/etc/cni/net.d/99-other.conflist <<'END'
{"cniVersion":"1.0.0","name":"othernet","plugins":[{"type":"other","apiToken":"`+planted+`"}]}
END
mkdir -p /etc/cni/net.d/other.d
printf 'apiVersion: v1\nkind: Config\nusers:\n- name: other\n  user: {token: %s, client-key-data: %s}\n' `+planted+` `+planted+` >/etc/cni/net.d/other.d/other.kubeconfig`)
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), soon) // the context of t has ended
			defer cancel()
			_, err := h.Run(ctx, "rm", "-r", "/etc/cni/net.d/99-other.conflist", "/etc/cni/net.d/other.d")
			harness.OK(t, err)
		})
	}
	w.kubectl(t, "annotate", "node", calmNode, "example.com/registry-password="+planted, "--overwrite")
	now := metav1.Now()
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: inDefault, GenerateName: "planted-"},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: inDefault, Name: clientName},
		Reason:         "FailedCreatePodSandBox", Type: corev1.EventTypeWarning, FirstTimestamp: now, LastTimestamp: now, Count: 1,
		Message: "planted: https://registry Authorization: Bearer " + planted + "1234",
	}
	harness.OK(t, w.Kube.Client.Create(t.Context(), event))
	// The operator's EC2 credentials are in its Deployment.
	keys := w.kubectl(t, "get", "deployments,daemonsets", "--namespace="+addons.Namespace,
		`--output=jsonpath={range .items[*].spec.template.spec.containers[*].env[?(@.name=="AWS_SECRET_ACCESS_KEY")]}{.value}{"\n"}{end}`)
	if w.Mode == lab.OperatorMode && len(strings.Fields(keys)) == 0 {
		t.Error("the operator has no key that a bundle could contain")
	}
	return append(secrets, slices.Compact(strings.Fields(keys))...)
}

// pluginPath lets kubectl find `kubectl berth` for the rest of the test.
func pluginPath(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	harness.OK(t, os.Symlink(filepath.Join(harness.BinDir, "berthctl"), filepath.Join(dir, "kubectl-berth")))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}
