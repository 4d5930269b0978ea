package kubectl

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/test/harness"
)

// parsed returns the object of a YAML text, or nil for "".
func parsed(t *testing.T, text string) (o object) {
	t.Helper()
	harness.OK(t, yaml.Unmarshal([]byte(text), &o))
	return o
}

func told(found []difference) (out []string) {
	for _, d := range found {
		out = append(out, strings.TrimPrefix(d.object+" "+d.field+": "+d.text, "K ns/a "))
	}
	return out
}

// Changed, missing and added fields of an object are differences; forms that the API server writes are not.
func TestDriftOfObjects(t *testing.T) {
	const meta = "{kind: K, metadata: {namespace: ns, name: a}, "
	for name, tt := range map[string]struct {
		want, got string
		lines     []string
	}{
		"equal":         {"spec: {a: 1, b: [x]}}", "spec: {b: [x], a: 1, defaulted: y}, status: {a: 1}}", nil},
		"missing":       {"spec: {}}", "", []string{": missing"}},
		"changed":       {"spec: {a: 1, t: x}}", "spec: {a: 2}}", []string{"spec.a: 2, expected 1", `spec.t: missing, expected "x"`}},
		"dropped empty": {"spec: {a: {}, b: [], c: '', d: false, e: null, f: {g: {}}}}", "spec: {}}", nil},
		"zero":          {"spec: {replicas: 0}}", "spec: {replicas: 2}}", []string{"spec.replicas: 2, expected 0"}},
		"quantities":    {"spec: {resources: {limits: {cpu: 0.5, memory: 1024Mi}}}}", "spec: {resources: {limits: {cpu: 500m, memory: 1Gi}}}}", nil},
		"no quantity":   {"spec: {name: '0.5'}}", "spec: {name: 500m}}", []string{`spec.name: "500m", expected "0.5"`}},
		"by name": {
			"spec: {env: [{name: A, value: '1'}, {name: B, value: '2'}, {name: C}]}}", "spec: {env: [{name: X, value: x}, {name: B, value: '3'}, {name: A, value: '1'}]}}",
			[]string{`spec.env[name=B].value: "3", expected "2"`, `spec.env[name=C]: missing, expected {"name":"C"}`, `spec.env[name=X]: {"name":"X","value":"x"}, expected to be unset`},
		},
		"by position":  {"rules: [{verbs: [get]}, {verbs: [list]}]}", "rules: [{verbs: [get]}, {verbs: [list, watch]}]}", []string{`rules[1].verbs: ["list","watch"], expected ["list"]`}},
		"other length": {"rules: [{verbs: [get]}]}", "rules: []}", []string{`rules: [], expected [{"verbs":["get"]}]`}},
		"same volume twice": {
			"spec: {m: [{name: v, mountPath: /a}, {name: v, mountPath: /b}]}}", "spec: {m: [{name: v, mountPath: /b}, {name: v, mountPath: /a}]}}", nil,
		},
		"secrets": {"data: {a: b}}", "data: {a: c}}", []string{`data.a: "c", expected "b"`}},
	} {
		t.Run(name, func(t *testing.T) {
			got := object(nil)
			if tt.got != "" {
				got = parsed(t, meta+tt.got)
			}
			if d := cmp.Diff(tt.lines, told(driftOf(parsed(t, meta+tt.want), got))); d != "" {
				t.Errorf("differences (-want +got):\n%s", d)
			}
		})
	}
	secret := "{kind: Secret, metadata: {name: a}, data: {a: b}}"
	if found := driftOf(parsed(t, secret), parsed(t, strings.Replace(secret, "b}", "c}", 1))); len(found) > 0 {
		t.Errorf("differences of a Secret = %v, want none: they would print its data", found)
	}
}

// Fields that somebody added belong to another owner than the chart, Berth and Kubernetes.
func TestAddedFields(t *testing.T) {
	const want = "{kind: K, metadata: {namespace: ns, name: a, labels: {app.kubernetes.io/instance: berth}}, spec: {template: {metadata: {}, c: [{name: x}]}}}"
	got := `
kind: K
metadata:
  namespace: ns
  name: a
  labels: {app.kubernetes.io/instance: berth, mine: "yes"}
  managedFields:
  - {manager: MANAGER, fieldsV1: {"f:spec": {"f:template": {"f:nodeSelector": {".": {}, "f:a": {}}, "f:metadata": {"f:annotations": {"f:kubectl.kubernetes.io/restartedAt": {}}}, "f:c": {'k:{"name":"x"}': {"f:tty": {}}}}}, "f:metadata": {"f:labels": {"f:mine": {} MORE}}, "f:status": {"f:a": {}}}}
spec: {defaulted: 1, template: {nodeSelector: {a: b}, metadata: {annotations: {kubectl.kubernetes.io/restartedAt: now}}, c: [{name: x, tty: true}]}}
status: {a: 1}
`
	all := []string{
		`metadata.labels.mine: "yes", expected to be unset (set by me)`, `spec.template.c[name=x].tty: true, expected to be unset (set by me)`,
		`spec.template.nodeSelector: {"a":"b"}, expected to be unset (set by me)`,
	}
	for _, tt := range []struct {
		manager, more string
		lines         []string
	}{
		{"me", "", all}, {"berth-operator", "", nil}, {"kube-controller-manager", "", nil},
		{"helm", `, "f:app.kubernetes.io/instance": {}`, nil}, // it also owns the API server's defaults
	} {
		text := strings.NewReplacer("MANAGER", tt.manager, " MORE", tt.more).Replace(got)
		if d := cmp.Diff(tt.lines, told(driftOf(parsed(t, want), parsed(t, text)))); d != "" {
			t.Errorf("%s: differences (-want +got):\n%s", tt.manager, d)
		}
	}
}

// An empty chart value replaces a default, so it differs from a value that is not set.
func TestDifferencesOfChartValues(t *testing.T) {
	saved := choices{valuesFile: []byte("{a: {b: false, c: null, d: [], e: 1, f: {}}, g: x, same: {h: [1, {i: null}]}}")}
	now := choices{valuesFile: []byte("{a: {e: 2, f: {j: ''}}, k: 0, same: {h: [1, {i: null}]}}")}
	found, err := saved.compare(now)
	harness.OK(t, err)
	want := []string{
		"a.b: missing, expected false", "a.c: missing, expected null", "a.d: missing, expected []", "a.e: 2, expected 1", `a.f.j: "", expected to be unset`,
		`g: missing, expected "x"`, "k: 0, expected to be unset",
	}
	for i, line := range want {
		want[i] = chartValues + " " + line
	}
	if d := cmp.Diff(want, told(found)); d != "" {
		t.Errorf("differences (-want +got):\n%s", d)
	}
}

// A key that somebody removed from berthd-allowed is not restored by the chart: the file has what it means to lack the key.
func TestRemovedKeysOfAllowed(t *testing.T) {
	rendered := object{"subnetIDs": "subnet-1", "settings": "trunk=true", "addresses": "1024"}
	if got := changedAllowed(rendered, maps.Clone(rendered)); got != nil {
		t.Errorf("unchanged: %v, want nil", got)
	}
	got := changedAllowed(rendered, object{"settings": "trunk=true", "mine": "x"})
	if d := cmp.Diff(object{"subnetIDs": "", "settings": "trunk=true", "addresses": "256", "mine": "x"}, got); d != "" {
		t.Errorf("data (-want +got):\n%s", d)
	}
	policy, err := fs.ReadFile(deploy.Chart(), "templates/admission/allowed.yaml")
	harness.OK(t, err)
	for _, key := range []string{"subnetIDs", "addresses"} {
		if rule := fmt.Sprintf("params.?data[?'%s'].orValue('%s')", key, got[key]); !strings.Contains(string(policy), rule) {
			t.Errorf("the admission policy lacks %s", rule)
		}
	}
}

// Of the annotations that an object of the release has, those of kubectl and Helm are no differences.
func TestAnnotationsOfToolsAreNoDrift(t *testing.T) {
	want := parsed(t, "{kind: K, metadata: {namespace: ns, name: a}, data: {a: b}}")
	got := parsed(t, `
kind: K
metadata:
  namespace: ns
  name: a
  annotations: {meta.helm.sh/release-name: berth, kubectl.kubernetes.io/last-applied-configuration: x, mine: "yes"}
  managedFields:
  - {manager: kubectl-client-side-apply, fieldsV1: {"f:metadata": {"f:annotations": {".": {}, "f:kubectl.kubernetes.io/last-applied-configuration": {}}}}}
  - {manager: me, fieldsV1: {"f:metadata": {"f:annotations": {"f:mine": {}}}}}
data: {a: b}
`)
	if d := cmp.Diff([]string{`metadata.annotations.mine: "yes", expected to be unset (set by me)`}, told(driftOf(want, got))); d != "" {
		t.Errorf("differences (-want +got):\n%s", d)
	}
}

// A folder is written whole, for its owner alone, and never in place of other files.
func TestChoicesAreWrittenWhole(t *testing.T) {
	within := t.TempDir()
	dir := filepath.Join(within, "backup")
	one, two := choices{"values.yaml": []byte("a: 1\n"), "objects/vpcs.yaml": []byte("{kind: VPC, metadata: {name: v}}\n")}, choices{"values.yaml": []byte("a: 2\n")}
	refused := func(c choices, dir string, force bool, want string) {
		t.Helper()
		if err := c.write(dir, force); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("write to %s: error = %v, want one with %q", dir, err, want)
		}
	}
	harness.OK(t, one.write(dir, false))
	refused(two, dir, false, "is not empty")
	got, err := readChoices(dir)
	harness.OK(t, err)
	if d := cmp.Diff(one, got); d != "" {
		t.Errorf("files after a refusal (-want +got):\n%s", d)
	}
	for _, name := range []string{"values.yaml", "objects/vpcs.yaml"} {
		info, err := os.Stat(filepath.Join(dir, name))
		harness.OK(t, err)
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode = %v, want 0600", name, info.Mode())
		}
	}
	found, err := one.compare(two)
	harness.OK(t, err)
	if d := cmp.Diff([]string{"VPC v : in the folder, but not in the cluster", "chart values a: 2, expected 1"}, told(found)); d != "" {
		t.Errorf("differences (-want +got):\n%s", d)
	}
	harness.OK(t, two.write(dir, true))
	got, err = readChoices(dir)
	harness.OK(t, err)
	if d := cmp.Diff(two, got); d != "" {
		t.Errorf("replaced files (-want +got):\n%s", d)
	}
	harness.OK(t, os.WriteFile(filepath.Join(dir, "mine.txt"), nil, 0o600))
	refused(one, dir, true, "mine.txt")
	refused(one, filepath.Join(dir, "values.yaml", "x"), false, "not a directory")
	harness.OK(t, os.Mkdir(filepath.Join(within, "empty"), 0o700))
	harness.OK(t, one.write(filepath.Join(within, "empty"), false))
	left, err := os.ReadDir(within)
	harness.OK(t, err)
	if len(left) != 2 || !slices.ContainsFunc(left, func(e os.DirEntry) bool { return e.Name() == "empty" }) {
		t.Errorf("%v is left in the folder above, want the two folders only", left)
	}
}
