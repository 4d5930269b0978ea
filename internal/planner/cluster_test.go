package planner

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness/check"
)

// recorded serves the answers of a Prometheus, by metric.
func recorded(t *testing.T, edit func(metric, answer string) string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, metric := range []string{"berth_addresses", "berth_cni_requests_total", "berth_build_info", "kube_deployment_spec_replicas", "kube_deployment_status_replicas_updated"} {
			if strings.Contains(r.URL.Query().Get("query"), metric) && r.URL.Path == "/prefix/api/v1/query_range" {
				text := string(check.Must(os.ReadFile(filepath.Join("testdata", "prometheus", metric+".json")))(t))
				if edit != nil {
					text = edit(metric, text)
				}
				_, _ = w.Write([]byte(text))
				return
			}
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL + "/prefix"
}

var recordedAt = time.Unix(1_800_000_000, 0)

func fiveNodes() Cluster {
	two := int32(2)
	c := Cluster{
		Subnets: []Subnet{{Name: "subnet-1", CIDR: "10.0.0.0/24", Used: 3}}, DaemonPods: 1, Pods: map[string]int{"default/web": 12, "default/api": 4},
		Settings: Settings{Mode: ModeNode, ENI: v1alpha1.ENISpec{WarmENITarget: &two}},
	}
	for range 5 {
		c.Nodes = append(c.Nodes, ClusterNode{InstanceType: "m5.large", Subnet: "subnet-1", MaxPods: 29})
	}
	return c
}

// What Prometheus recorded becomes the workload: deployments, their rollouts, node changes, and other pods whose lifetime
// follows from how many started.
func TestHistory(t *testing.T) {
	c := fiveNodes()
	c.History = check.Must(ReadHistory(t.Context(), http.DefaultClient, recorded(t, nil), 2*time.Hour, recordedAt))(t)
	check.Equal(t, c.History.Step, time.Minute, "step")
	s := c.Scenario()
	check.Equal(t, text(t, s.Nodes), `[{"name":"m5.large-subnet-1-29","instanceType":"m5.large","count":4,"subnets":["subnet-1"],"maxPods":29,"changes":[{"at":"1h0m0s","count":5}]}]`, "nodes")
	check.Equal(t, text(t, s.Workload), `{"daemonPods":1,"deployments":[`+
		`{"name":"default/api","replicas":4,"rollouts":[{"at":"1h30m0s"}]},`+
		`{"name":"default/web","replicas":6,"changes":[{"at":"1h0m0s","count":12}]},`+
		`{"name":"other pods","replicas":5,"lifetime":"1m15s"}]}`, "workload")
	r := check.Must(Simulate(t.Context(), s))(t)
	invariants(t, r)
	best := Recommend(s, r)
	if best.Keep || len(best.Reasons) != len(r.Alternatives)-1 || best.Settings.ENI.WarmENITarget != nil {
		t.Errorf("Recommend() = %+v, want other settings than two warm ENIs, with a reason for each alternative", best)
	}
}

// The recommended fields can be set in a template.
func TestRecommendedFields(t *testing.T) {
	zero, one := int32(0), int32(1)
	fewer := Settings{ENI: v1alpha1.ENISpec{VPCID: "vpc-1", AvailabilityZone: "a", IPFamilies: "ipv4", MaxPods: &zero, WarmIPTarget: &one}}
	s := Scenario{Alternatives: []Alternative{{Name: "fewer", Settings: &fewer}}}
	r := Recommend(s, &Result{Alternatives: []OfAlternative{{Name: "current", Totals: Totals{MeanIdle: 5}}, {Name: "fewer"}}})
	if want := `{"warmIPTarget":1}`; r.Changes != want {
		t.Errorf("Recommend() = %s, want %s", r.Changes, want)
	}
}

func TestHistoryErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		url    string
		window time.Duration
		want   string
	}{
		"no URL":       {"localhost:9090", time.Hour, "expected the URL of Prometheus"},
		"short":        {"http://localhost", time.Minute, "a history of 1m0s: expected 1h0m0s"},
		"no metrics":   {recorded(t, func(_, _ string) string { return `{"status":"success","data":{"resultType":"matrix","result":[]}}` }), time.Hour, "0 series, expected 1: check that Prometheus scrapes berthd"},
		"refused":      {recorded(t, func(_, _ string) string { return `{"status":"error","error":"too many samples"}` }), time.Hour, "too many samples"},
		"not its API":  {recorded(t, func(_, _ string) string { return `<html>` }), time.Hour, "HTTP status 200, and the answer is not Prometheus's"},
		"no such path": {recorded(t, nil) + "/more", time.Hour, "HTTP status 404"},
	} {
		if _, err := ReadHistory(t.Context(), http.DefaultClient, tc.url, tc.window, recordedAt); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error = %v, want %s", name, err, tc.want)
		}
	}
}

func TestClusterWithoutHistory(t *testing.T) {
	s := fiveNodes().Scenario()
	check.OK(t, s.Check())
	check.Equal(t, text(t, s.Workload.Deployments), `[{"name":"default/api","replicas":4,"rollouts":[{"at":"30m0s"}]},{"name":"default/web","replicas":12,"rollouts":[{"at":"30m0s"}]}]`, "deployments")
	check.Equal(t, len(s.Alternatives), 4, "alternatives")
}
