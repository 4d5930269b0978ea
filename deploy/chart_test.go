package deploy_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/test/harness"
)

// Like `helm lint --strict`, which also fails on warnings.
func TestChartIsLintClean(t *testing.T) {
	for mode := range modes {
		for _, m := range lint.RunAll("chart", deploy.InMode(mode, "test").Values, "kube-system").Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("mode %s: %s", mode, m)
			}
		}
	}
}

// The helm command of users and the cluster lab has the same version as the library.
func TestHelmCommandIsOfTheLibrarysVersion(t *testing.T) {
	version := regexp.MustCompile(`helm\.sh/helm/v4 (v\S+)`)
	library, command := version.FindSubmatch(readFile(t, "../go.mod")), version.FindSubmatch(readFile(t, "../tools/helm/go.mod"))
	if library == nil || command == nil || string(library[1]) != string(command[1]) {
		t.Errorf("library %q, command %q", library, command)
	}
}

// Since Kubernetes 1.32, tokens name the node of their pod, which the policies rely on.
func TestOldKubernetesIsRefused(t *testing.T) {
	for _, tt := range []struct{ mode, version, want string }{
		{deploy.NodeMode, "v1.30.0", ""},
		{deploy.NodeMode, "v1.29.15", "mode node needs Kubernetes 1.30 or later, and this is v1.29.15"},
		{deploy.OperatorMode, "v1.31.9", "mode operator needs Kubernetes 1.32 or later, and this is v1.31.9"},
		{deploy.OperatorMode, "v1.32.0-eks-5f3c1a2", ""},
		{deploy.PoolMode, "v1.31.0", "mode pool needs Kubernetes 1.32 or later"},
		{deploy.PortMode, "v1.31.0", "mode port needs Kubernetes 1.32 or later"},
	} {
		r := deploy.InMode(tt.mode, "test")
		r.Kubernetes = tt.version
		if _, err := deploy.Render(r); (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s at %s: %v", tt.mode, tt.version, err)
		}
	}
}

// Changes by a caller do not affect objects returned to other callers.
func TestRenderedObjectsAreTheCallers(t *testing.T) {
	objects := render(t, deploy.NodeMode)
	objects[0].SetName("changed")
	if again := render(t, deploy.NodeMode); again[0].GetName() == "changed" {
		t.Error("another caller's change is seen")
	}
}

// definitions is the number of Berth's kinds.
const definitions = 11

// The CRDs are as generated. They belong to the release, so that an upgrade updates them, and
// outlive it by default.
func TestCRDsAreTheReleases(t *testing.T) {
	const policy = "helm.sh/resource-policy"
	for _, tt := range []struct {
		mode, values string
		want         int
		keep         string
	}{
		{deploy.NodeMode, "{}", 0, ""},
		{deploy.OperatorMode, "{}", definitions, "keep"},
		{deploy.PoolMode, "{}", definitions, "keep"},
		{deploy.PortMode, "{}", definitions, "keep"},
		{deploy.NodeMode, "ports: {enabled: true}", definitions, "keep"},
		{deploy.NodeMode, "egress: {enabled: true}", definitions, "keep"},
		{deploy.NodeMode, "nodeNetworkTemplates: {enabled: true}", 1, "keep"},
		{deploy.PoolMode, "nodeNetworkTemplates: {enabled: true}", definitions, "keep"},
		{deploy.PoolMode, "crds: {keep: false}", definitions, ""},
		{deploy.PoolMode, "crds: {install: false}", 0, ""},
	} {
		got := rendered(t, tt.mode, tt.values).Of("CustomResourceDefinition")
		if len(got) != tt.want {
			t.Errorf("%s, %s: %d definitions, want %d", tt.mode, tt.values, len(got), tt.want)
		}
		for _, o := range got {
			if keep := o.GetAnnotations()[policy]; keep != tt.keep || o.GetLabels()["app.kubernetes.io/part-of"] != "berth" {
				t.Errorf("%s, %s: policy %q, labels %v", tt.mode, tt.values, keep, o.GetLabels())
			}
		}
	}
	objects := render(t, deploy.PoolMode)
	names, err := fs.Glob(deploy.CRDs(), "*.yaml")
	harness.OK(t, err)
	for _, name := range names {
		text, err := fs.ReadFile(deploy.CRDs(), name)
		harness.OK(t, err)
		var want apiextensionsv1.CustomResourceDefinition
		harness.OK(t, yaml.UnmarshalStrict(text, &want))
		got, err := deploy.Get[apiextensionsv1.CustomResourceDefinition](objects, "CustomResourceDefinition", want.Name)
		harness.OK(t, err)
		if d := cmp.Diff(want.Spec, got.Spec); d != "" {
			t.Errorf("%s (-generated +installed):\n%s", name, d)
		}
	}
	if len(names) != definitions {
		t.Errorf("%d definitions are generated", len(names))
	}
}

// A release may be in any namespace with any service account names: policies and bindings refer to
// these.
func TestReleaseInAnotherNamespace(t *testing.T) {
	for _, mode := range []string{deploy.OperatorMode, deploy.PoolMode, deploy.PortMode} {
		r := values(t, mode, "{daemon: {serviceAccount: {name: agent}}, operator: {serviceAccount: {name: leader}}}")
		r.Namespace = "networking"
		objects, err := deploy.Render(r)
		harness.OK(t, err)
		text, err := json.Marshal(objects)
		harness.OK(t, err)
		for _, left := range []string{`kube-system[^"]`, `"kube-system"`, `serviceaccount:networking:berth`, `"kind":"ServiceAccount","name":"berth`} {
			if m := regexp.MustCompile(left).FindIndex(text); m != nil {
				t.Errorf("%s: ...%s...", mode, text[max(0, m[0]-100):min(len(text), m[1]+50)])
			}
		}
		users := map[string]bool{}
		for _, o := range objects.Of("ValidatingAdmissionPolicy") {
			p, err := deploy.Get[admissionregistrationv1.ValidatingAdmissionPolicy](objects, o.GetKind(), o.GetName())
			harness.OK(t, err)
			for _, c := range p.Spec.MatchConditions {
				users[strings.TrimPrefix(c.Expression, "request.userInfo.username == ")] = true
			}
		}
		if !users["'system:serviceaccount:networking:agent'"] || !users["'system:serviceaccount:networking:leader'"] {
			t.Errorf("%s: policies are about %v", mode, users)
		}
		harness.OK(t, applyIn(t, "networking", objects))
		if m := podOf(t, objects, "daemon").ServiceAccountName + podOf(t, objects, "operator").ServiceAccountName; m != "agentleader" {
			t.Errorf("pods run as %s", m)
		}
	}
}

// With Helm's server-side apply, the second of two objects with the same name silently wins. The
// namespace "default", which has the Events of cluster-scoped objects, is also the namespace of an
// installation without --namespace.
func TestEveryObjectIsThereOnce(t *testing.T) {
	for mode := range modes {
		for _, namespace := range []string{"kube-system", "default", "networking"} {
			r := values(t, mode, "{}")
			r.Namespace = namespace
			objects, err := deploy.Render(r)
			harness.OK(t, err)
			seen := map[string]bool{}
			for _, o := range objects {
				id := strings.Join([]string{o.GetKind(), o.GetNamespace(), o.GetName()}, " ")
				if seen[id] {
					t.Errorf("mode %s in namespace %s has two objects %s", mode, namespace, id)
				}
				seen[id] = true
			}
		}
	}
}

// If the socket and the records are in different folders, both are mounted from the node.
func TestSocketsFolderIsMounted(t *testing.T) {
	for _, settings := range []string{"{state-dir: /run/other}", "{socket: /run/other/a.sock}", "{state-dir: /run/berth/state}"} {
		pod := podOf(t, rendered(t, deploy.PoolMode, "daemon: {settings: "+settings+"}"), "daemon")
		c := onlyContainer(t, pod)
		mountsWhatBerthdUses(t, pod, c)
		paths := map[string]bool{}
		for _, m := range c.VolumeMounts {
			if paths[m.MountPath] {
				t.Errorf("%s: two volumes are mounted at %s", settings, m.MountPath)
			}
			paths[m.MountPath] = true
		}
	}
}

// The API server rejects a strategy with parameters of the other type, and the values have
// parameters of RollingUpdate by default.
func TestUpdateStrategyHasItsOwnParameters(t *testing.T) {
	objects := rendered(t, deploy.PoolMode, "{daemon: {updateStrategy: {type: OnDelete}}, operator: {updateStrategy: {type: Recreate}}}")
	daemon, err := deploy.Get[appsv1.DaemonSet](objects, "DaemonSet", "berthd")
	harness.OK(t, err)
	operator, err := deploy.Get[appsv1.Deployment](objects, "Deployment", "berth-operator")
	harness.OK(t, err)
	if s := daemon.Spec.UpdateStrategy; s.Type != appsv1.OnDeleteDaemonSetStrategyType || s.RollingUpdate != nil {
		t.Errorf("berthd has %+v", s)
	}
	if s := operator.Spec.Strategy; s.Type != appsv1.RecreateDeploymentStrategyType || s.RollingUpdate != nil {
		t.Errorf("berth-operator has %+v", s)
	}
}

// Roles, service accounts, policies, CRDs and the PodDisruptionBudget can each be disabled.
func TestPartsCanBeLeftOut(t *testing.T) {
	for text, kinds := range map[string][]string{
		"rbac: {create: false}":                            {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"},
		"admissionPolicies: {create: false}":               {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ConfigMap"},
		"operator: {podDisruptionBudget: {create: false}}": {"PodDisruptionBudget"},
		"{daemon: {serviceAccount: {create: false}}, operator: {serviceAccount: {create: false}}}": {"ServiceAccount"},
	} {
		if left := rendered(t, deploy.OperatorMode, text).Of(kinds...); len(left) > 0 {
			t.Errorf("%s leaves %s %s", text, left[0].GetKind(), left[0].GetName())
		}
		if had := render(t, deploy.OperatorMode).Of(kinds...); len(had) < len(kinds) {
			t.Errorf("without %s there are %d of %v", text, len(had), kinds)
		}
	}
}

// If the API server's own address is set, nothing waits for kube-proxy in operator and pool mode:
// the pods get the variables that client-go reads.
func TestAPIServersOwnAddress(t *testing.T) {
	objects := rendered(t, deploy.PoolMode, "apiServer: {host: 'fd00::1', port: 6443}")
	for _, program := range []string{"daemon", "operator"} {
		for _, e := range onlyContainer(t, podOf(t, objects, program)).Env {
			if strings.HasPrefix(e.Name, "KUBERNETES_") {
				t.Setenv(e.Name, e.Value)
			}
		}
		if h, p := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"); h != "fd00::1" || p != "6443" {
			t.Errorf("%s: host %q, port %q", program, h, p)
		}
		if _, err := rest.InClusterConfig(); errors.Is(err, rest.ErrNotInCluster) {
			t.Errorf("%s: %v", program, err)
		}
		harness.OK(t, os.Unsetenv("KUBERNETES_SERVICE_HOST"))
	}
	for _, e := range onlyContainer(t, podOf(t, render(t, deploy.PoolMode), "operator")).Env {
		if strings.HasPrefix(e.Name, "KUBERNETES_") {
			t.Errorf("%s is set to %q", e.Name, e.Value)
		}
	}
}

func TestImages(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0123456789abcdef", 4)
	for text, want := range map[string]string{
		"{}": "berth-node:dev",
		"daemon: {image: {repository: 'a.example:5000/b/node'}}":                 "a.example:5000/b/node:dev",
		"daemon: {image: {tag: v1.2.3}}":                                         "berth-node:v1.2.3",
		"daemon: {image: {tag: v1.2.3, digest: '" + digest + "'}}":               "berth-node@" + digest,
		"{daemon: {image: {pullPolicy: Always}}, imagePullSecrets: [{name: a}]}": "berth-node:dev",
	} {
		pod := podOf(t, rendered(t, deploy.NodeMode, text), "daemon")
		c := onlyContainer(t, pod)
		if c.Image != want {
			t.Errorf("%s: image %s, want %s", text, c.Image, want)
		}
		if always := strings.Contains(text, "Always"); always != (c.ImagePullPolicy == corev1.PullAlways) || always != (len(pod.ImagePullSecrets) == 1) {
			t.Errorf("%s: policy %s, secrets %v", text, c.ImagePullPolicy, pod.ImagePullSecrets)
		}
	}
}

// Mounts, ports and probes follow the settings, and additional pod values are applied.
func TestPodsFollowTheirValues(t *testing.T) {
	objects := rendered(t, deploy.PoolMode, `
metrics: {onNodeAddress: true}
commonLabels: {team: network}
daemon:
  settings:
    state-dir: /run/other
    socket: /run/other/berthd.sock
    cri-socket: unix:///run/crio/crio.sock
    cni-bin-dir: /usr/lib/cni
    cni-conf-dir: /etc/kubernetes/cni
    introspection-address: 127.0.0.1:7777
  extraEnv: [{name: BERTH_LOG_LEVEL, value: debug}]
  podLabels: {a: b}
  podAnnotations: {c: d}
  affinity: {nodeAffinity: {}}
  nodeSelector: {kubernetes.io/os: null, berth: "yes"}
operator:
  replicas: 3
  settings: {health-address: "127.0.0.1:7778"}
`)
	pod := podOf(t, objects, "daemon")
	c := onlyContainer(t, pod)
	mountsWhatBerthdUses(t, pod, c)
	cfg := load(t, c)
	checkProbes(t, c, "127.0.0.1:7777")
	if cfg.IntrospectionAddr != "127.0.0.1:7777" || cfg.LogLevel != "debug" || cfg.MetricsAddr != "[$(HOST_IP)]:61678" || c.Ports[0].HostPort != 61678 {
		t.Errorf("settings %+v, ports %v", cfg, c.Ports)
	}
	host := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "HOST_IP" })
	metrics := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "BERTH_METRICS_ADDRESS" })
	if host < 0 || host > metrics {
		t.Errorf("HOST_IP is variable %d, and is used in %d", host, metrics)
	}
	if len(pod.NodeSelector) != 1 || pod.NodeSelector["berth"] != "yes" || pod.Affinity == nil {
		t.Errorf("node selector %v, affinity %v", pod.NodeSelector, pod.Affinity)
	}
	operator := onlyContainer(t, podOf(t, objects, "operator"))
	checkProbes(t, operator, "127.0.0.1:7778")
	for _, o := range objects {
		if o.GetLabels()["team"] != "network" {
			t.Errorf("%s %s has the labels %v", o.GetKind(), o.GetName(), o.GetLabels())
		}
	}

	// Privileged, with an unchanged /proc/sys.
	c = onlyContainer(t, podOf(t, rendered(t, deploy.NodeMode, "daemon: {privileged: true}"), "daemon"))
	if cfg := load(t, c); cfg.SysctlDir != "/proc/sys" || !*c.SecurityContext.Privileged || c.SecurityContext.Capabilities != nil {
		t.Errorf("sysctls in %s, security context %+v", cfg.SysctlDir, c.SecurityContext)
	}

	// Without the CRI socket, and with metrics disabled.
	c = onlyContainer(t, podOf(t, rendered(t, deploy.NodeMode, `daemon: {settings: {cri-socket: null, metrics-address: ""}}`), "daemon"))
	if cfg := load(t, c); cfg.CRISocket != "" || cfg.MetricsAddr != "" || len(c.Ports) != 0 {
		t.Errorf("socket %q, metrics at %q, ports %v", cfg.CRISocket, cfg.MetricsAddr, c.Ports)
	}
	if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "runtime" }) {
		t.Error("a runtime's folder is mounted")
	}
}

// A daemon may request what its settings in the chart contain, without an entry in the list.
func TestAllowedIsWhatSettingsName(t *testing.T) {
	got, err := deploy.Get[corev1.ConfigMap](rendered(t, deploy.OperatorMode, `
daemon:
  settings:
    security-groups: [sg-1, sg-2]
    subnet-tags: {for: pods}
    first-interface-index: 0
    delete-on-termination: false
    trunk-eni: true
    warm-prefix-target: 100
allowed: {securityGroups: [sg-3], subnetIDs: ["*"], settings: [usePrimaryAddress=true, firstInterfaceIndex=0]}
`), "ConfigMap", "berthd-allowed")
	harness.OK(t, err)
	want := map[string]string{
		"securityGroups": "sg-3,sg-1,sg-2", "securityGroupTags": "", "subnetIDs": "*", "subnetTags": "for=pods",
		"settings": "usePrimaryAddress=true,firstInterfaceIndex=0,deleteOnTermination=false,trunk=true", "addresses": "1600",
	}
	if d := cmp.Diff(want, got.Data); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// The notes say what to check and which prerequisites are missing.
func TestNotes(t *testing.T) {
	for _, tt := range []struct {
		mode, values string
		has, lacks   []string
	}{
		{deploy.NodeMode, "{}", []string{"-n kube-system rollout status daemonset/berthd", `cluster "test"`, "berthctl status"}, []string{"berth-operator", "AddressPool", "WARNING"}},
		{deploy.OperatorMode, "{}", []string{"deployment/berth-operator", "kubectl get nodenetworks", "no annotation", "apiServer.host"}, []string{"AddressPool", "WARNING"}},
		{deploy.OperatorMode, "{operator: {serviceAccount: {annotations: {a: b}}}, apiServer: {host: a}}", nil, []string{"no annotation", "apiServer.host"}},
		{deploy.PoolMode, "{}", []string{`Make an AddressPool called "default"`}, []string{"IAM", "nodenetworks"}},
		{deploy.PoolMode, "{crds: {keep: false}, admissionPolicies: {create: false}}", []string{"WARNING: crds.keep is false", "WARNING: without the admission policies"}, nil},
		{deploy.NodeMode, "{monitoring: {podMonitor: {enabled: true}}}", []string{"Metrics are at port 61678"}, []string{"61680"}},
		{deploy.PoolMode, "{metrics: {onNodeAddress: true}, daemon: {settings: {metrics-address: '0.0.0.0:7777'}}}", []string{"Metrics are at port 7777", "61680"}, nil},
	} {
		notes, err := deploy.Notes(values(t, tt.mode, tt.values))
		harness.OK(t, err)
		for _, text := range tt.has {
			if !strings.Contains(notes, text) {
				t.Errorf("%s, %s: the notes lack %q:\n%s", tt.mode, tt.values, text, notes)
			}
		}
		for _, text := range tt.lacks {
			if strings.Contains(notes, text) {
				t.Errorf("%s, %s: the notes have %q:\n%s", tt.mode, tt.values, text, notes)
			}
		}
	}
}

// modes.yaml lists the modes of the chart, and their settings are known to the programs.
func TestModesAreThoseOfTheChart(t *testing.T) {
	var of map[string]struct {
		Kubernetes       string
		EventsOf         []string
		EC2              bool
		Daemon, Operator map[string]any
	}
	harness.OK(t, yaml.UnmarshalStrict(readFile(t, "chart/files/modes.yaml"), &of))
	for mode, ipam := range modes {
		m, ok := of[mode]
		if got, _ := m.Daemon["ipam"].(string); !ok || got != ipam && (got != "" || ipam != config.IPAMENI) {
			t.Errorf("mode %s has ipam %q", mode, got)
		}
		dirs, err := filepath.Glob("chart/files/rbac/" + mode + "/*/role.yaml")
		harness.OK(t, err)
		if (m.Operator != nil) != (len(dirs) == 2) || (m.Operator != nil) != (len(m.EventsOf) > 0) {
			t.Errorf("mode %s: operator %v, roles %v, events of %v", mode, m.Operator, dirs, m.EventsOf)
		}
	}
	if len(of) != len(modes) {
		t.Errorf("the chart has %d modes", len(of))
	}
}
