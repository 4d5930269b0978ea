package monitoring

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/deploy"
)

// monitored returns a release of a mode with all monitoring enabled.
func monitored(t *testing.T, mode string, ports bool) map[string]*unstructured.Unstructured {
	t.Helper()
	r := deploy.InMode(mode, "test")
	r.Values["ports"] = map[string]any{"enabled": ports}
	on := func() map[string]any {
		return map[string]any{"enabled": true, "labels": map[string]any{"release": "prometheus"}}
	}
	r.Values["monitoring"] = map[string]any{"podMonitor": on(), "rules": on(), "dashboard": on()}
	objects, err := deploy.Render(r)
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]*unstructured.Unstructured{}
	for _, o := range objects {
		byName[o.GetKind()+" "+o.GetName()] = o
	}
	return byName
}

// Rendered objects contain the unchanged files, with the labels by which they are selected.
func TestChartShipsRulesAndDashboard(t *testing.T) {
	objects := monitored(t, deploy.NodeMode, false)
	rules, board := objects["PrometheusRule berth"], objects["ConfigMap berth-dashboard"]
	if rules == nil || board == nil {
		t.Fatal("no PrometheusRule berth, or no ConfigMap berth-dashboard")
	}
	var want any
	readYAML(t, rulesFile, &want)
	if diff := cmp.Diff(want, rules.Object["spec"]); diff != "" {
		t.Errorf("the PrometheusRule is not %s (-want +got):\n%s", rulesFile, diff)
	}
	text, _, _ := unstructured.NestedString(board.Object, "data", "berth.json")
	var got dashboard
	if err := json.Unmarshal([]byte(text), &got); err != nil || got.UID != "berth" {
		t.Errorf("UID of the ConfigMap's dashboard = %q (error: %v), want berth", got.UID, err)
	}
	if text != strings.TrimSpace(readFile(t, dashboardFile)) {
		t.Errorf("the ConfigMap's dashboard is not %s", dashboardFile)
	}
	for _, o := range []*unstructured.Unstructured{rules, board, objects["PodMonitor berthd"]} {
		if o == nil || o.GetLabels()["release"] != "prometheus" || o.GetLabels()["app.kubernetes.io/part-of"] != "berth" {
			t.Errorf("labels of %v, want those of the release", o)
		}
	}
	if board.GetLabels()["grafana_dashboard"] == "" {
		t.Errorf("Grafana's sidecar does not find the dashboard: %v", board.GetLabels())
	}
}

// The rules for ports follow the others if ports are enabled, and are absent otherwise.
func TestPortRules(t *testing.T) {
	var of [][]map[string]any // groups, by file
	for _, path := range ruleFiles {
		var file struct {
			Groups []map[string]any `json:"groups"`
		}
		readYAML(t, path, &file)
		of = append(of, file.Groups)
	}
	both := slices.Concat(of[:2]...)
	for _, tt := range []struct {
		mode  string
		ports bool
		want  []map[string]any
	}{
		{deploy.PoolMode, false, of[0]}, {deploy.PoolMode, true, both}, {deploy.NodeMode, true, both}, {deploy.PortMode, false, both},
	} {
		rules := monitored(t, tt.mode, tt.ports)["PrometheusRule berth"]
		got, err := json.Marshal(rules.Object["spec"])
		if err != nil {
			t.Fatal(err)
		}
		want, err := json.Marshal(map[string]any{"groups": tt.want})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("rules in mode %s with ports %t (-want +got):\n%s", tt.mode, tt.ports, diff)
		}
	}
}

// TestRulesOfNetworkPolicies checks that the rules for network policies follow the others if these are enabled.
func TestRulesOfNetworkPolicies(t *testing.T) {
	groups := func(enabled bool) (names []string) {
		r := deploy.InMode(deploy.NodeMode, "test")
		r.Values["networkPolicies"] = map[string]any{"enabled": enabled}
		r.Values["monitoring"] = map[string]any{"rules": map[string]any{"enabled": true}}
		objects, err := deploy.Render(r)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			if o.GetKind() == "PrometheusRule" {
				list, _, _ := unstructured.NestedSlice(o.Object, "spec", "groups")
				for _, g := range list {
					names = append(names, fmt.Sprint(g.(map[string]any)["name"]))
				}
			}
		}
		return names
	}
	without, with := groups(false), groups(true)
	if slices.Contains(without, "berth-policies") || !slices.Equal(with, append(without, "berth-policies")) {
		t.Errorf("groups without network policies %q, with %q", without, with)
	}
}

// The rules for Egresses follow the others if egress is enabled, and gateways in all namespaces are scraped with the
// labels that the rules use.
func TestEgressIsMonitored(t *testing.T) {
	r := deploy.InMode(deploy.EgressMode, "test")
	r.Values["monitoring"] = map[string]any{"podMonitor": map[string]any{"enabled": true}, "rules": map[string]any{"enabled": true}}
	objects, err := deploy.Render(r)
	if err != nil {
		t.Fatal(err)
	}
	var groups []string
	var monitor string
	for _, o := range objects {
		switch o.GetKind() + " " + o.GetName() {
		case "PrometheusRule berth":
			list, _, _ := unstructured.NestedSlice(o.Object, "spec", "groups")
			for _, g := range list {
				groups = append(groups, fmt.Sprint(g.(map[string]any)["name"]))
			}
		case "PodMonitor berth-egress":
			text, err := json.Marshal(o.Object["spec"])
			if err != nil {
				t.Fatal(err)
			}
			monitor = string(text)
		}
	}
	if n := len(groups); n < 2 || groups[n-1] != "berth-egress" {
		t.Errorf("rule groups = %q, want berth-egress last", groups)
	}
	for _, want := range []string{
		`"namespaceSelector":{"any":true}`, `"key":"` + v1alpha1.LabelEgress + `"`, `"port":"health"`, `"replacement":"berth-egress","targetLabel":"job"`, `"targetLabel":"namespace"`, `"targetLabel":"egress"`, `"targetLabel":"instance"`,
	} {
		if !strings.Contains(monitor, want) {
			t.Errorf("the PodMonitor of gateways lacks %s: %s", want, monitor)
		}
	}
	if monitored(t, deploy.PoolMode, false)["PodMonitor berth-egress"] != nil {
		t.Error("a PodMonitor of gateways exists without egress")
	}
}

// Ports, addresses and labels of the PodMonitors match those of the pods.
func TestPodMonitorsMatchPods(t *testing.T) {
	for _, mode := range []string{deploy.NodeMode, deploy.OperatorMode, deploy.PoolMode, deploy.PortMode} {
		t.Run(mode, func(t *testing.T) {
			objects := monitored(t, mode, false)
			scraped(t, objects["PodMonitor berthd"], objects["DaemonSet berthd"], "berthd", 61678)
			if mode == deploy.NodeMode {
				if objects["PodMonitor berth-operator"] != nil {
					t.Error("a PodMonitor of the operator exists without an operator")
				}
				return
			}
			scraped(t, objects["PodMonitor berth-operator"], objects["Deployment berth-operator"], "berth-operator", 61680)
		})
	}
}

// ofPods are labels that the Prometheus Operator adds to all series of a pod.
var ofPods = []string{"namespace", "pod", "container"}

// PodMonitors keep the labels of metrics. Otherwise Prometheus renames a label that the target also has, such as
// namespace to exported_namespace, and rules do not match.
func TestPodMonitorsKeepMetricLabels(t *testing.T) {
	metrics := readMetrics(t)
	for program, page := range map[string]string{"berthd": "metrics.md", "berth-operator": "operator-metrics.md"} {
		var of []string
		for name, m := range metrics {
			for _, label := range m.labels {
				if m.page == page && slices.Contains(ofPods, label) {
					of = append(of, name+"{"+label+"}")
				}
			}
		}
		endpoints, _, _ := unstructured.NestedSlice(monitored(t, deploy.PoolMode, false)["PodMonitor "+program].Object, "spec", "podMetricsEndpoints")
		honor, _, _ := unstructured.NestedBool(endpoints[0].(map[string]any), "honorLabels")
		if honor != (len(of) > 0) {
			t.Errorf("PodMonitor %s: honorLabels = %t; metrics with labels of pods: %v", program, honor, of)
		}
	}
}

func scraped(t *testing.T, monitor, workload *unstructured.Unstructured, job string, port int64) {
	t.Helper()
	if monitor == nil || workload == nil {
		t.Fatalf("no PodMonitor or no pods of %s", job)
	}
	selector, _, _ := unstructured.NestedStringMap(monitor.Object, "spec", "selector", "matchLabels")
	labels, _, _ := unstructured.NestedStringMap(workload.Object, "spec", "template", "metadata", "labels")
	for k, v := range selector {
		if labels[k] != v {
			t.Errorf("the PodMonitor selects %s=%s, but pods have %q", k, v, labels[k])
		}
	}
	containers, _, _ := unstructured.NestedSlice(workload.Object, "spec", "template", "spec", "containers")
	container, err := json.Marshal(containers[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		fmt.Sprintf(`{"containerPort":%d,"hostPort":%d,"name":"metrics"}`, port, port),
		fmt.Sprintf(`{"name":"BERTH_METRICS_ADDRESS","value":"[$(HOST_IP)]:%d"}`, port),
	} {
		if !strings.Contains(string(container), want) {
			t.Errorf("the container lacks %s", want)
		}
	}
	// A variable must precede others that refer to it.
	if host := strings.Index(string(container), `"name":"HOST_IP"`); host < 0 || host > strings.Index(string(container), "BERTH_METRICS_ADDRESS") {
		t.Error("HOST_IP does not come before BERTH_METRICS_ADDRESS")
	}
	endpoints, err := json.Marshal(monitor.Object["spec"])
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"port":"metrics"`, fmt.Sprintf(`{"replacement":%q,"targetLabel":"job"}`, job), `"targetLabel":"instance"`} {
		if !strings.Contains(string(endpoints), want) {
			t.Errorf("the PodMonitor lacks %s", want)
		}
	}
}
