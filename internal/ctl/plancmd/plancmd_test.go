package plancmd

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthnet/berth/internal/planner"
	"github.com/berthnet/berth/test/harness/check"
)

// The test program is also the child that simulates for the page.
func TestMain(m *testing.M) {
	planner.Child()
	os.Exit(m.Run())
}

// run executes the command.
func run(t *testing.T, o Options, stdin string, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := New(o)
	cmd.SetArgs(args)
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestPlan(t *testing.T) {
	check.OutputOnPage(t, "../../../docs/guides/plan.md", "berthctl plan example:three-nodes", func(args []string) string {
		return check.Must(run(t, Options{}, "", args[2:]...))(t)
	})
	text := check.Must(run(t, Options{}, "", "example:three-nodes", "--show"))(t)
	name := filepath.Join(t.TempDir(), "x.csv")
	out := check.Must(run(t, Options{}, text, "-", "-o", "json", "--csv", name))(t)
	var r planner.Result
	check.OK(t, json.Unmarshal([]byte(out), &r))
	want := check.Must(planner.Simulate(t.Context(), check.Must(planner.Parse([]byte(text)))(t)))(t)
	check.Equal(t, r.Alternatives[0].Totals, want.Alternatives[0].Totals, "totals")
	rows := check.Must(csv.NewReader(bytes.NewReader(check.Must(os.ReadFile(name))(t))).ReadAll())(t)
	check.Equal(t, len(rows), 1+len(want.Alternatives)*len(want.Alternatives[0].Series.At), "rows of CSV")
	check.Equal(t, strings.Join(rows[0], ","), "alternative,seconds,subnet,used,warm,cooling,enis,others,free", "header")
	if list := check.Must(run(t, Options{}, "", "--list"))(t); !strings.Contains(list, "three-nodes\n") || !strings.Contains(list, "49 addresses") {
		t.Errorf("--list printed %s", list)
	}
}

func TestPlanOfCluster(t *testing.T) {
	s := check.Must(planner.Parse(check.Must(planner.Example("three-nodes"))(t)))(t)
	o := Options{Cluster: func(context.Context, *cobra.Command) (planner.Scenario, error) { return s, nil }}
	out := check.Must(run(t, o, ""))(t)
	if !strings.Contains(out, "Recommendation: warm IPs 5\n") || !strings.Contains(out, `{"warmIPTarget":5}`) {
		t.Errorf("output lacks the recommendation:\n%s", out)
	}
}

func TestPlanMistakes(t *testing.T) {
	for args, want := range map[string]string{
		"": "expected a scenario", "example:x": `no example has the name "x": expected one of branches,`, "none.yaml": "none.yaml",
		"example:cooling -o xml": `--output is "xml"`, "a b --csv c": "expected one scenario, not 2", "-": "subnets: 0 entries: expected 1 to 200",
	} {
		if _, err := run(t, Options{}, "name: x", strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error = %v, want %s", args, err, want)
		}
	}
}

// The page and the API are served until the command ends, for this machine only on a loopback address.
func TestServe(t *testing.T) {
	l := check.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	address := l.Addr().String()
	check.OK(t, l.Close())
	ctx, cancel := context.WithCancel(t.Context())
	cmd := New(Options{Page: fstest.MapFS{"index.html": {Data: []byte("the page")}}})
	cmd.SetArgs([]string{"--serve", address})
	cmd.SetErr(&bytes.Buffer{})
	done := make(chan error, 1)
	go func() { done <- cmd.ExecuteContext(ctx) }()
	var resp *http.Response
	for begun := time.Now(); time.Since(begun) < 30*time.Second; {
		var err error
		if resp, err = http.Post("http://"+address+"/api/simulate", "application/yaml", bytes.NewReader(check.Must(planner.Example("minimum-ip-target"))(t))); err == nil {
			break
		}
	}
	body := check.Must(io.ReadAll(resp.Body))(t)
	check.OK(t, resp.Body.Close())
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("status = %s: %s, want 200", resp.Status, body)
	}
	var r planner.Result
	check.OK(t, json.Unmarshal(body, &r))
	check.Equal(t, r.Alternatives[0].Totals.PeakENIs, 4, "ENIs")
	req := check.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/", nil))(t)
	req.Host = "example.com"
	foreign, err := http.DefaultClient.Do(req)
	check.OK(t, err)
	check.OK(t, foreign.Body.Close())
	check.Equal(t, foreign.StatusCode, http.StatusForbidden, "status for another host name")
	cancel()
	check.OK(t, <-done)
}
