package deploy_test

import (
	"encoding/json"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/test/harness"
)

// Like `helm lint --strict`, which also fails on warnings.
func TestChartPassesLint(t *testing.T) {
	for mode := range modes {
		for _, m := range lint.RunAll("chart", deploy.InMode(mode, "test").Values, "kube-system").Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("mode %s: lint: %s", mode, m)
			}
		}
	}
}

// The helm command of users and the cluster lab has the same version as the library.
func TestHelmCommandMatchesLibrary(t *testing.T) {
	version := regexp.MustCompile(`helm\.sh/helm/v4 (v\S+)`)
	library, command := version.FindSubmatch(readFile(t, "../go.mod")), version.FindSubmatch(readFile(t, "../tools/helm/go.mod"))
	if library == nil || command == nil || string(library[1]) != string(command[1]) {
		t.Errorf("version of the library = %q, of the command = %q, want the same", library, command)
	}
}

// With Helm's server-side apply, the second of two objects with the same name silently wins. The
// namespace "default", which has the Events of cluster-scoped objects, is also the namespace of an
// installation without --namespace.
func TestObjectsAreUnique(t *testing.T) {
	for mode := range modes {
		for _, namespace := range []string{"default", "networking"} {
			r := deploy.InMode(mode, "test")
			r.Namespace = namespace
			objects, err := deploy.Render(r)
			harness.OK(t, err)
			thereOnce(t, objects)
		}
	}
}

// Changes by a caller do not affect objects returned to other callers.
func TestRenderedObjectsAreCopies(t *testing.T) {
	objects := render(t, deploy.NodeMode)
	objects[0].SetName("changed")
	if again := render(t, deploy.NodeMode); again[0].GetName() == "changed" {
		t.Error("a caller's change affected the objects of another caller")
	}
}

// Tokens name the node of their pod since Kubernetes 1.32, which the policies rely on.
func TestOldKubernetesIsRejected(t *testing.T) {
	for _, tt := range []struct{ mode, values, version, want string }{
		{deploy.NodeMode, "{}", "v1.30.0", ""},
		{deploy.NodeMode, "{}", "v1.29.15", "mode node needs Kubernetes 1.30 or later, and this is v1.29.15"},
		{deploy.NodeMode, "daemon: {settings: {pod-events: always}}", "v1.31.4", "pod-events: always needs Kubernetes 1.32 or later"},
		{deploy.NodeMode, "nodeNetworkTemplates: {enabled: true}", "v1.31.4", "nodeNetworkTemplates.enabled needs Kubernetes 1.32 or later"},
		{deploy.OperatorMode, "{}", "v1.31.9", "mode operator needs Kubernetes 1.32 or later, and this is v1.31.9"},
		{deploy.OperatorMode, "{}", "v1.32.0-eks-5f3c1a2", ""},
		{deploy.PoolMode, "{}", "v1.31.0", "mode pool needs Kubernetes 1.32 or later"},
		{deploy.PortMode, "{}", "v1.31.0", "mode port needs Kubernetes 1.32 or later"},
	} {
		r := values(t, tt.mode, tt.values)
		r.Kubernetes = tt.version
		if _, err := deploy.Render(r); (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Render() in mode %s with %s on Kubernetes %s: error = %v", tt.mode, tt.values, tt.version, err)
		}
	}
}

// definitions is the number of Berth's CRDs.
const definitions = 11

// The installed CRDs are the generated ones.
func TestCRDsMatchGenerated(t *testing.T) {
	objects := render(t, deploy.PoolMode)
	names, err := fs.Glob(deploy.CRDs(), "*.yaml")
	harness.OK(t, err)
	for _, name := range names {
		text, err := fs.ReadFile(deploy.CRDs(), name)
		harness.OK(t, err)
		var want apiextensionsv1.CustomResourceDefinition
		harness.OK(t, yaml.UnmarshalStrict(text, &want))
		got := one[apiextensionsv1.CustomResourceDefinition](t, objects, want.Name)
		if d := cmp.Diff(want.Spec, got.Spec); d != "" {
			t.Errorf("%s (-generated +installed):\n%s", name, d)
		}
	}
	if n := len(objects.Of("CustomResourceDefinition")); len(names) != definitions || n != definitions {
		t.Errorf("%d CRDs are generated and %d installed, want %d", len(names), n, definitions)
	}
}

// The value commonLabels is on every object.
func TestCommonLabels(t *testing.T) {
	for _, o := range rendered(t, deploy.PoolMode, "commonLabels: {team: network}") {
		if o.GetLabels()["team"] != "network" {
			t.Errorf("labels of %s %s = %v, want team=network", o.GetKind(), o.GetName(), o.GetLabels())
		}
	}
}

// A release may be in any namespace with any service account names, to which policies and bindings must refer.
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
				t.Errorf("mode %s: fixed name in the objects: ...%s...", mode, text[max(0, m[0]-100):min(len(text), m[1]+50)])
			}
		}
		users := map[string]bool{}
		for _, o := range objects.Of("ValidatingAdmissionPolicy") {
			p := one[admissionregistrationv1.ValidatingAdmissionPolicy](t, objects, o.GetName())
			for _, c := range p.Spec.MatchConditions {
				users[strings.TrimPrefix(c.Expression, "request.userInfo.username == ")] = true
			}
		}
		if !users["'system:serviceaccount:networking:agent'"] || !users["'system:serviceaccount:networking:leader'"] {
			t.Errorf("mode %s: accounts in policies = %v, want agent and leader", mode, users)
		}
		harness.OK(t, applyIn(t, "networking", objects))
		if m := podOf(t, objects, "daemon").ServiceAccountName + podOf(t, objects, "operator").ServiceAccountName; m != "agentleader" {
			t.Errorf("service accounts of pods = %s, want agent and leader", m)
		}
	}
}

// The notes list what to check and which prerequisites are missing.
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
		{deploy.EgressMode, "{}", []string{"docs/guides/install/egress.md#egress-beside-another-network"}, []string{"AddressPool"}},
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
				t.Errorf("%s, %s: the notes contain %q:\n%s", tt.mode, tt.values, text, notes)
			}
		}
	}
}

// modes.yaml lists the modes of the chart, and their settings are known to the programs.
func TestModesMatchChart(t *testing.T) {
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
			t.Errorf("mode %s: ipam = %q", mode, got)
		}
		dirs, err := filepath.Glob("chart/files/rbac/" + mode + "/*/role.yaml")
		harness.OK(t, err)
		if (m.Operator != nil) != (len(dirs) == 2) || (m.Operator != nil) != (len(m.EventsOf) > 0) {
			t.Errorf("mode %s: operator = %v, roles = %v, events of %v", mode, m.Operator, dirs, m.EventsOf)
		}
	}
	if len(of) != len(modes) {
		t.Errorf("the chart has %d modes, want those of modes.yaml", len(of))
	}
}

// A real API server accepts all objects and knows all their fields.
func TestManifestsApply(t *testing.T) {
	for mode := range modes {
		harness.OK(t, harness.ControlPlane.ApplyObjects(t.Context(), render(t, mode)))
	}
}
