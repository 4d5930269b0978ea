package deploy_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/release/common"
	release "helm.sh/helm/v4/pkg/release/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/ctl/kubectl"
	"github.com/berthnet/berth/test/harness"
)

// installRelease applies a release and records it as Helm does, until the test ends.
func installRelease(t *testing.T, r deploy.Release) {
	t.Helper()
	c := harness.KubeClient(t)
	objects, err := deploy.Render(r)
	harness.OK(t, err)
	var manifest bytes.Buffer
	for _, o := range objects {
		text, err := yaml.Marshal(o.Object)
		harness.OK(t, err)
		fmt.Fprintf(&manifest, "---\n# Source: berth/templates/x.yaml\n%s", text)
	}
	harness.OK(t, harness.ControlPlane.ApplyObjects(t.Context(), objects))
	secret := recorded(t, &release.Release{
		Name: "berth", Namespace: "kube-system", Version: 7, Info: &release.Info{Status: common.StatusDeployed}, Manifest: manifest.String(),
		Chart: &chart.Chart{Metadata: &chart.Metadata{Name: "berth", Version: "1.2.3"}}, Config: jsonOf(t, r.Values),
	}, false)
	harness.OK(t, c.Create(t.Context(), secret))
	t.Cleanup(func() {
		harness.OK(t, c.Delete(context.Background(), secret))
		for _, o := range objects.Except("CustomResourceDefinition") {
			harness.OK(t, client.IgnoreNotFound(c.Delete(context.Background(), o)))
		}
	})
}

// berth runs kubectl berth and returns its output and exit code.
func berth(t *testing.T, args ...string) (string, int) {
	t.Helper()
	var out bytes.Buffer
	cmd := kubectl.New(kubectl.Options{Config: harness.ControlPlane.Config()})
	cmd.SetArgs(append(args, "--quiet"))
	cmd.SetOut(&out)
	code, err := kubectl.ExitCode(cmd.ExecuteContext(t.Context()))
	if err != nil {
		fmt.Fprintf(&out, "error: %v", err)
	}
	return out.String(), code
}

// What the API server stores of a release is as the chart rendered it, and what people change by hand is drift.
func TestDriftFromRelease(t *testing.T) {
	for _, r := range []struct{ mode, values string }{
		{deploy.NodeMode, chosen}, {deploy.PoolMode, ""}, {deploy.PortMode, "{egress: {enabled: true}, networkPolicies: {enabled: true}}"}, {deploy.OperatorMode, ""},
	} {
		t.Run(r.mode, func(t *testing.T) {
			harness.KubeClean(t)
			with := values(t, r.mode, r.values)
			with.Values["mode"] = r.mode
			installRelease(t, with)
			if out, code := berth(t, "settings", "--diff"); code != 0 || out != "" {
				t.Fatalf("as installed: exit code = %d, output\n%swant 0 and none", code, out)
			}
			if r.mode != deploy.OperatorMode {
				return
			}
			if out, _ := berth(t, "status"); !strings.Contains(out, "Settings: as in Helm release berth, revision 7\n") {
				t.Errorf("status as installed:\n%s", out)
			}
			c := harness.KubeClient(t)
			in := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "kube-system", Name: name} }
			edit := func(o client.Object, change func()) {
				t.Helper()
				harness.OK(t, c.Get(t.Context(), client.ObjectKeyFromObject(o), o))
				change()
				harness.OK(t, c.Update(t.Context(), o, client.FieldOwner("kubectl-edit")))
			}
			daemon := &appsv1.DaemonSet{ObjectMeta: in("berthd")}
			edit(daemon, func() {
				pod := &daemon.Spec.Template
				pod.Spec.NodeSelector["by"], pod.Spec.HostAliases = "hand", []corev1.HostAlias{{IP: "10.0.0.1", Hostnames: []string{"x"}}}
				metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "kubectl.kubernetes.io/restartedAt", "now") // no drift
				pod.Spec.Containers[0].Env = append(pod.Spec.Containers[0].Env, corev1.EnvVar{Name: "BERTH_LOG_LEVEL", Value: "debug"})
			})
			operator := &appsv1.Deployment{ObjectMeta: in("berth-operator")}
			edit(operator, func() { operator.Spec.Replicas = new(int32(0)) })
			allowed := &corev1.ConfigMap{ObjectMeta: in("berthd-allowed")}
			edit(allowed, func() { allowed.Data["addresses"] = "1024" })
			harness.OK(t, c.Delete(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "berthd"}}))
			out, code := berth(t, "settings", "--diff")
			for _, line := range []string{
				"ClusterRole berthd: missing\n", "DaemonSet kube-system/berthd\n", `.nodeSelector.by: "hand", expected to be unset (set by kubectl-edit)`,
				`.hostAliases: [{"hostnames":["x"],"ip":"10.0.0.1"}], expected to be unset (set by kubectl-edit)`,
				`.env[name=BERTH_LOG_LEVEL]: {"name":"BERTH_LOG_LEVEL","value":"debug"}, expected to be unset`,
				"Deployment kube-system/berth-operator\n  spec.replicas: 0, expected 2\n", "ConfigMap kube-system/berthd-allowed\n  data.addresses: \"1024\", expected \"256\"\n",
			} {
				if !strings.Contains(out, line) {
					t.Errorf("output lacks %q", line)
				}
			}
			if fields := strings.Count(out, "expected") + 1; code != kubectl.ExitUnwell || fields != 6 {
				t.Errorf("exit code = %d, %d differences, want %d and 6:\n%s", code, fields, kubectl.ExitUnwell, out)
			}
			if out, _ := berth(t, "status"); !strings.Contains(out, "Settings: 6 differences from Helm release berth, revision 7") {
				t.Errorf("status after changes:\n%s", out)
			}
			harness.OK(t, c.Delete(t.Context(), daemon))
			if out, _ := berth(t, "status"); !strings.Contains(out, "Settings: not compared with the Helm release: no DaemonSet berthd") {
				t.Errorf("status without the DaemonSet:\n%s", out)
			}
		})
	}
}

const people = `
apiVersion: v1
kind: Namespace
metadata: {name: settings-shop, labels: {team: a, egress.berth.dev/may: "yes"}, annotations: {berth.dev/pool: big, other: x}}
---
apiVersion: berth.dev/v1alpha1
kind: AddressPool
metadata: {name: big, labels: {a: b}}
spec: {blockSizeBits: 4, subnets: [{ipv4: 10.2.0.0/16}]}
---
apiVersion: berth.dev/v1alpha1
kind: AddressPool
metadata: {name: another}
spec: {subnets: [{ipv4: 10.3.0.0/16}]}
---
apiVersion: berth.dev/v1alpha1
kind: NodeNetworkTemplate
metadata: {name: pods}
spec: {nodeSelector: {matchLabels: {node-restriction.kubernetes.io/pods: apart}}, eni: {subnetTags: {for: pods}, firstInterfaceIndex: 1}}
---
apiVersion: berth.dev/v1alpha1
kind: VPC
metadata: {name: vpc-1a2b3c4d}
spec:
  provider: neutron
  network: net
  endpoint: https://keystone:5000/v3
  credentials: {type: password, secretName: vpc-1a2b3c4d}
  allowedNamespaces: {names: ["*"]}
---
apiVersion: berth.dev/v1alpha1
kind: NICPolicy
metadata: {name: db, namespace: settings-shop}
spec: {podSelector: {matchLabels: {app: db}}, securityGroups: [sg-0123456789abcdef0]}
---
apiVersion: berth.dev/v1alpha1
kind: Egress
metadata: {name: internet, namespace: settings-shop}
spec: {destinations: [0.0.0.0/0], replicas: 2}
`

// What was written from one cluster, applied to another, is written from that one alike.
func TestChoicesRoundTrip(t *testing.T) {
	harness.KubeClean(t)
	installRelease(t, values(t, deploy.OperatorMode, "{ports: {enabled: true}, egress: {enabled: true}}"))
	c := harness.KubeClient(t)
	apply := func(files ...string) {
		t.Helper()
		for _, text := range files {
			harness.OK(t, harness.ControlPlane.Apply(t.Context(), fstest.MapFS{"a.yaml": {Data: []byte(text)}}))
		}
	}
	join := func() { // nodes join the cluster
		t.Helper()
		for _, name := range []string{"node-a", "node-b"} {
			n := &v1alpha1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NodeNetworkSpec{InstanceID: "i-1", InstanceType: "m5.large"}}
			n.Spec.ENI.MaxPods, n.Spec.ENI.VPCID = new(int32(29)), "vpc-1"
			harness.OK(t, c.Create(t.Context(), n, client.FieldOwner(v1alpha1.OwnerDaemon)))
		}
	}
	apply(people)
	join()
	n := &v1alpha1.NodeNetwork{}
	harness.OK(t, c.Get(t.Context(), client.ObjectKey{Name: "node-b"}, n))
	n.Spec.ENI.MaxENIs, n.Spec.ENI.MaxPods = new(int32(2)), new(int32(12))
	harness.OK(t, c.Update(t.Context(), n, client.FieldOwner("kubectl-edit")))

	dir := t.TempDir()
	written := func(name string) map[string]string {
		t.Helper()
		to := filepath.Join(dir, name)
		if out, code := berth(t, "settings", "-o", to); code != 0 {
			t.Fatalf("exit code = %d: %s", code, out)
		}
		files := map[string]string{}
		harness.OK(t, filepath.WalkDir(to, func(path string, e os.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				text, err := os.ReadFile(path)
				files[strings.TrimPrefix(path, to+"/")] = string(text)
				return err
			}
			return err
		}))
		return files
	}
	first := written("first")
	names := []string{
		"nodes/nodenetworks.yaml", "objects/0-namespaces.yaml", "objects/addresspools.yaml", "objects/egresses.yaml", "objects/nicpolicies.yaml",
		"objects/nodenetworktemplates.yaml", "objects/vpcs.yaml", "values.yaml",
	}
	got := []string{}
	for name, text := range first {
		got = append(got, name)
		for _, no := range []string{"uid", "resourceVersion", "managedFields", "creationTimestamp", "\nstatus", "generation"} {
			if strings.Contains(text, no) {
				t.Errorf("%s has %q:\n%s", name, no, text)
			}
		}
	}
	slices.Sort(got)
	if d := cmp.Diff(names, got); d != "" {
		t.Errorf("files (-want +got):\n%s", d)
	}
	if d := cmp.Diff("apiVersion: berth.dev/v1alpha1\nkind: NodeNetwork\nmetadata:\n  name: node-b\nspec:\n  eni:\n    maxENIs: 2\n    maxPods: 12\n", first["nodes/nodenetworks.yaml"]); d != "" {
		t.Errorf("NodeNetworks (-want +got):\n%s", d)
	}
	if ns := first["objects/0-namespaces.yaml"]; strings.Contains(ns, "other: x") || strings.Contains(ns, "team: a") || !strings.Contains(ns, "berth.dev/pool: big") || !strings.Contains(ns, "egress.berth.dev/may") {
		t.Errorf("Namespaces, want what Berth reads alone:\n%s", ns)
	}

	harness.KubeClean(t) // another cluster
	if out, code := berth(t, "settings", "--diff", filepath.Join(dir, "first")); code != kubectl.ExitUnwell || strings.Count(out, "in the folder, but not in the cluster") != 7 {
		t.Errorf("empty cluster: exit code = %d, want %d and 7 missing objects:\n%s", code, kubectl.ExitUnwell, out)
	}
	for _, name := range names[1:7] {
		apply(first[name])
	}
	join()
	apply(first["nodes/nodenetworks.yaml"])
	if d := cmp.Diff(first, written("second")); d != "" {
		t.Errorf("files (-first +second):\n%s", d)
	}
	if out, code := berth(t, "settings", "--diff", filepath.Join(dir, "first")); code != 0 || out != "" {
		t.Errorf("restored cluster: exit code = %d, output\n%swant 0 and none", code, out)
	}
	pool := &v1alpha1.AddressPool{}
	harness.OK(t, c.Get(t.Context(), client.ObjectKey{Name: "big"}, pool))
	pool.Spec.Subnets = append(pool.Spec.Subnets, v1alpha1.PoolSubnet{IPv4: "10.9.0.0/16"})
	harness.OK(t, c.Update(t.Context(), pool))
	if out, code := berth(t, "settings", "--diff", filepath.Join(dir, "first")); code != kubectl.ExitUnwell || !strings.HasPrefix(out, "AddressPool big\n  spec.subnets: ") {
		t.Errorf("changed pool: exit code = %d, output\n%s", code, out)
	}
}
