package planner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/test/harness/check"
)

const small = `{"duration": "5m", "subnets": [{"name": "a", "cidr": "10.0.0.0/24"}], "nodes": [{"name": "n", "instanceType": "m5.large", "count": 1, "subnets": ["a"]}]}`

func page() fstest.MapFS { return fstest.MapFS{"index.html": {Data: []byte("<!doctype html>")}} }

// ask sends a request and decodes the reply.
func ask(t *testing.T, h http.Handler, method, path, body string, header ...string) (*httptest.ResponseRecorder, map[string]any) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	var out map[string]any
	if strings.HasPrefix(path, "/api") {
		check.OK(t, json.Unmarshal(w.Body.Bytes(), &out))
	}
	return w, out
}

func TestHandler(t *testing.T) {
	h := Handler(page(), ServeOptions{})
	for _, tc := range []struct {
		method, path, body string
		status             int
		want               string // part of the reply
	}{
		{"GET", "/", "", 200, ""},
		{"GET", "/none", "", 404, ""},
		{"POST", "/", "", 405, ""},
		{"GET", "/api/types", "", 200, `"maxPods":29`},
		{"GET", "/api/scenarios", "", 200, `"name":"three-nodes"`},
		{"GET", "/api/simulate", "", 404, "the API has"},
		{"POST", "/api/none", "", 404, "the API has"},
		{"POST", "/api/simulate", small, 200, `"peakHeld":10`},
		{"POST", "/api/simulate", strings.Replace(small, `"count": 1`, `"count": 501`, 1), 400, "nodes: 501 nodes in all at the most: expected at most 500; the command"},
		{"POST", "/api/simulate", "name: x", 400, `"fields":[{"field":"subnets"`},
		{"POST", "/api/simulate", "{", 400, "neither YAML nor JSON"},
		{"POST", "/api/simulate", strings.Repeat("x", MaxSize+1), 413, "too large"},
	} {
		r, body := ask(t, h, tc.method, tc.path, tc.body)
		if text := text(t, body); r.Code != tc.status || !strings.Contains(text, tc.want) {
			t.Errorf("%s %s: status %d, %.300s; want %d, %s", tc.method, tc.path, r.Code, text, tc.status, tc.want)
		}
		if !strings.Contains(r.Header().Get("Content-Security-Policy"), "default-src 'self'") {
			t.Errorf("%s %s: no content security policy", tc.method, tc.path)
		}
	}
	if r, _ := ask(t, h, "POST", "/api/simulate", small, "Sec-Fetch-Site", "cross-site"); r.Code != 403 {
		t.Errorf("request of another site: status %d, want 403", r.Code)
	}
}

// One simulation runs at a time, and it ends when its visitor goes or its time is over.
func TestHandlerBounds(t *testing.T) {
	begun, ended := make(chan struct{}), make(chan error, 1)
	h := Handler(page(), ServeOptions{Most: time.Minute, Simulate: func(ctx context.Context, _ Scenario) (*Result, error) {
		begun <- struct{}{}
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, context.Cause(ctx)
	}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r := httptest.NewRequestWithContext(ctx, "POST", "/api/simulate", strings.NewReader(small))
		h.ServeHTTP(httptest.NewRecorder(), r)
	}()
	<-begun
	if r, body := ask(t, h, "POST", "/api/simulate", small); r.Code != 429 || r.Header().Get("Retry-After") == "" {
		t.Errorf("second simulation: status %d, %v; want 429", r.Code, body)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("simulation of a visitor who left ended with %v", err)
	}
	<-done
	late := Handler(page(), ServeOptions{Most: time.Millisecond})
	big := strings.Replace(strings.Replace(small, `"5m"`, `"168h"`, 1), `"count": 1`, `"count": 200`, 1)
	if r, body := ask(t, late, "POST", "/api/simulate", big); r.Code != 503 || !strings.Contains(text(t, body), "took longer than") {
		t.Errorf("long simulation: status %d, %v; want 503", r.Code, body)
	}
}

// The test program is also the child, and a server that is killed.
func TestMain(m *testing.M) {
	Child()
	if os.Getenv("PLANNER_SERVER") != "" {
		s, err := Parse([]byte(strings.Replace(strings.Replace(small, `"5m"`, `"168h"`, 1), `"count": 1`, `"count": 200`, 1)))
		if err == nil {
			_, err = InChild(context.Background(), s)
		}
		fmt.Println("the simulation ended:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// A simulation has bounds on its memory, and ends with the server that started it.
func TestChildEndsWithServer(t *testing.T) {
	server := exec.CommandContext(t.Context(), check.Must(os.Executable())(t))
	server.Env = append(os.Environ(), "PLANNER_SERVER=1")
	check.OK(t, server.Start())
	child := ""
	until(t, "a simulation runs", func() bool {
		children, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", server.Process.Pid))
		for _, f := range children {
			text, _ := os.ReadFile(f)
			if child = strings.TrimSpace(string(text)); child != "" {
				break
			}
		}
		limits, _ := os.ReadFile("/proc/" + child + "/limits")
		return regexp.MustCompile(fmt.Sprintf(`Max data size +%d `, childData)).Match(limits)
	})
	check.OK(t, server.Process.Kill())
	_ = server.Wait() // killed
	until(t, "the simulation has ended", func() bool {
		stat, err := os.ReadFile("/proc/" + child + "/stat")
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}

func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for begun := time.Now(); !done(); runtime.Gosched() {
		if time.Since(begun) > 30*time.Second {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// The API, the command's function and a child process give the same result.
func TestSameResultEverywhere(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 4 {
		s := randomScenario(r, i)
		want := check.Must(Simulate(t.Context(), s))(t)
		invariants(t, want)
		child := check.Must(InChild(t.Context(), s))(t)
		same(t, text(t, child), text(t, want), fmt.Sprintf("scenario %d: result of a child", i))
		w := httptest.NewRecorder()
		Handler(page(), ServeOptions{}).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "POST", "/api/simulate", strings.NewReader(text(t, s))))
		same(t, strings.TrimSpace(w.Body.String()), text(t, want), fmt.Sprintf("scenario %d: result of the API", i))
	}
	if _, err := InChild(t.Context(), Scenario{}); err == nil || !strings.Contains(err.Error(), "subnets: 0 entries") {
		t.Errorf("InChild() of an empty scenario: error = %v, want its mistakes", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := InChild(ctx, randomScenario(r, 0)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("InChild() after its deadline: error = %v", err)
	}
}

// randomScenario draws a small scenario that is valid.
func randomScenario(r *rand.Rand, seed int) Scenario {
	n := func(most int) *int32 { v := int32(r.IntN(most)); return &v }
	s := Scenario{
		Duration: Duration(20 * time.Minute), Seed: uint64(seed),
		Subnets: []Subnet{{Name: "a", CIDR: []string{"10.0.0.0/26", "10.0.0.0/24"}[r.IntN(2)], Used: r.IntN(20), IPv6: true}, {Name: "b", CIDR: "10.0.1.0/25", IPv6: true}},
		Nodes: []NodeGroup{{
			Name: "x", InstanceType: []string{"t3.small", "m5.large", "c5.xlarge"}[r.IntN(3)], Count: 1 + r.IntN(4), Subnets: []string{"a", "b"},
			Changes: []Change{{At: Duration(8 * time.Minute), Count: r.IntN(6)}},
		}},
		Workload: Workload{DaemonPods: r.IntN(3), Deployments: []Deployment{
			{Name: "web", Replicas: r.IntN(30), Changes: []Change{{At: Duration(5 * time.Minute), Count: r.IntN(60)}}, Rollouts: []Rollout{{At: Duration(10 * time.Minute)}}},
			{Name: "jobs", Replicas: r.IntN(10), Lifetime: Duration(time.Minute)},
			{Name: "broken", Replicas: r.IntN(5), CrashLoop: &CrashLoop{From: Duration(2 * time.Minute)}},
		}},
		Alternatives: []Alternative{
			{Name: "targets", Settings: &Settings{ENI: v1alpha1.ENISpec{WarmIPTarget: n(8), MinimumIPTarget: n(20)}}},
			{Name: "operator", Settings: &Settings{Mode: ModeOperator, ENI: v1alpha1.ENISpec{PreAllocate: n(8), MaxAboveWatermark: n(4), IPFamilies: []string{"ipv4", "dual", "ipv6"}[r.IntN(3)]}}},
		},
	}
	return s
}
