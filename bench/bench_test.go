package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthnet/berth/bench/vpccni"
	"github.com/berthnet/berth/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m, "berth", "berthd", "berth-operator")) }

// A name or a prefix selects groups, and only the programs that these groups need are built.
func TestChooseGroupsByName(t *testing.T) {
	lab := "./bench/null ./cmd/berth ./cmd/berthd reference-plugins"
	for only, want := range map[string]struct{ groups, needs string }{
		"limiter":           {"limiter-fill limiter-throttled limiter-refused limiter-foreign limiter-peers", ""},
		"limiter-fill,exec": {"exec limiter-fill", lab},
		"exec,daemon":       {"exec daemon", lab},
		"scale":             {"scale-join scale-event scale-memory scale-takeover scale-operator", "./cmd/berth-operator control-plane"},
		"pools":             {"pools-book pools-requests pools-full pools-add", "./cmd/berth ./cmd/berth-operator ./cmd/berthd control-plane reference-plugins"},
		"ports-burst":       {"ports-burst", ""},
		"ports-add":         {"ports-add", "./bench/null ./cmd/berth ./cmd/berth-operator ./cmd/berthd control-plane open-vswitch"},
		"egress":            {"egress-clients egress-throughput egress-add egress-failover", "./cmd/berth ./cmd/berth-egress ./cmd/berth-operator ./cmd/berthd control-plane virtual-machine"},
		"egress-throughput": {"egress-throughput", "virtual-machine"},
		"burst-ready":       {"burst-ready", "control-plane lab-images"},
		hugeGroup:           {hugeGroup, "./cmd/berth-operator control-plane"},
		kwokGroup:           {kwokGroup, "./cmd/berth ./cmd/berth-operator ./cmd/berthctl ./cmd/berthd control-plane kwok"},
		amazonGroup:         {amazonGroup, "./cmd/berth ./cmd/berthd amazon-vpc-cni control-plane"},
		"":                  {strings.Join(names(groups[:len(groups)-len(onDemand)]), " "), "./bench/null ./cmd/berth ./cmd/berth-egress ./cmd/berth-operator ./cmd/berthd control-plane lab-images open-vswitch reference-plugins virtual-machine"},
	} {
		chosen, err := choose(only)
		harness.OK(t, err)
		if got := strings.Join(names(chosen), " "); got != want.groups {
			t.Errorf("-only %q selects %s, want %s", only, got, want.groups)
		}
		if got := strings.Join(needed(chosen), " "); got != want.needs {
			t.Errorf("-only %q needs %s, want %s", only, got, want.needs)
		}
	}
	if _, err := choose("scale,nope"); err == nil {
		t.Error("choose() accepted an unknown group")
	}
}

// Groups that need the virtual machine's kernel are measured there, by another bench process.
func TestGroupsForVirtualMachine(t *testing.T) {
	chosen, err := choose("exec,egress")
	harness.OK(t, err)
	for inside, want := range map[bool][2]string{
		false: {"exec egress-clients", "egress-throughput egress-add egress-failover"},
		true:  {"exec egress-clients egress-throughput egress-add egress-failover", ""},
	} {
		here, machine := (&bench{options: options{inside: inside}}).split(chosen)
		got := [2]string{strings.Join(names(here), " "), strings.Join(names(machine), " ")}
		if got != want {
			t.Errorf("inside = %v: groups split into %q, want %q", inside, got, want)
		}
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want float64
	}{
		{[]float64{3}, 3},
		{[]float64{9, 1, 5}, 5},
		{[]float64{4, 1, 2, 3}, 2},
	} {
		if got := median(c.in); got != c.want {
			t.Errorf("median(%v) = %v, want %v", c.in, got, c.want)
		}
	}
}

func TestBudget(t *testing.T) {
	most, least := budget{limit: 1.5}, budget{limit: 0.95, atLeast: true}
	for _, c := range []struct {
		b    budget
		r    Result
		want bool
	}{
		{most, Result{Value: 3, Reference: 2, Ratio: 1.5}, true},
		{most, Result{Value: 4, Reference: 2, Ratio: 2}, false},
		{most, Result{Value: 1.4}, true},
		{most, Result{Value: 1.6}, false},
		{least, Result{Value: 1, Reference: 1, Ratio: 1}, true},
		{least, Result{Value: 9, Reference: 10, Ratio: 0.9}, false},
	} {
		if got := c.b.met(c.r); got != c.want {
			t.Errorf("budget %+v with result %+v: met() = %v, want %v", c.b, c.r, got, c.want)
		}
	}
}

// Every budget names a figure in results.json.
func TestBudgetsNameExistingFigures(t *testing.T) {
	results, err := read("results.json")
	harness.OK(t, err)
	for _, b := range budgets {
		if _, ok := find(results, b.figure); !ok {
			t.Errorf("results.json has no figure %s, which has a budget", b.figure)
		}
	}
}

// Results that were not measured in this run keep their values and positions.
func TestEarlierResultsAreKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.json")
	now := []Result{{Name: "b", Value: 5}, {Name: "c", Value: 6}}
	if got, err := merge(path, now); err != nil || !slices.Equal(got, now) {
		t.Errorf("merge() without a file = %+v, %v, want the new results", got, err)
	}
	harness.OK(t, write(path, []Result{{Name: "a", Value: 1}, {Name: "b", Value: 2}, {Name: "d", Value: 3}}))
	got, err := merge(path, now)
	harness.OK(t, err)
	if diff := cmp.Diff([]Result{{Name: "a", Value: 1}, {Name: "b", Value: 5}, {Name: "d", Value: 3}, {Name: "c", Value: 6}}, got); diff != "" {
		t.Errorf("merged results (-want +got):\n%s", diff)
	}
	harness.OK(t, os.WriteFile(path, []byte("no list"), 0o644))
	if _, err := merge(path, now); err == nil {
		t.Error("merge() of a file that is not JSON: error = nil, want an error")
	}
}

// Runs each group of pool figures at a small scale, without checking durations.
func TestPools(t *testing.T) {
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	if assets == "" {
		t.Fatal("KUBEBUILDER_ASSETS is empty: expected the directory that hack/kubebox.sh prints")
	}
	// Debian installs containernetworking-plugins in /usr/lib/cni.
	b := &bench{options: options{binDir: harness.BinDir, refDir: "/usr/lib/cni", assets: assets, rounds: 1}}
	t.Cleanup(func() { harness.OK(t, b.close()) })
	var results []Result
	for _, g := range []group{
		{"pools-book", "", nothing, poolAllocation},
		{"pools-requests", "", controlPlanePrograms, func(ctx context.Context, b *bench) []Result { return b.blockRequests(ctx, 1, 40, 40) }},
		{"pools-add", "", poolModeLab, poolAdds},
	} {
		got, err := b.measure(t.Context(), g)
		harness.OK(t, err)
		results = append(results, got...)
	}
	for _, name := range []string{
		"pool-book-memory", "pool-carve", "pool-carve-last", "pool-requests-40", "pool-requests-memory",
		"pool-exec-add", "pool-exec-del", "pool-daemon-add",
	} {
		if r, ok := find(results, name); !ok || r.Value <= 0 {
			t.Errorf("result %s = %+v, want a value above 0", name, r)
		}
	}
	// Not compared with 0: the CPU time of an operator's start is subtracted, and varies by more than so few requests
	// cost.
	if _, ok := find(results, "pool-requests-cpu"); !ok {
		t.Error("no result pool-requests-cpu")
	}
	if r, _ := find(results, "pool-requests-writes"); r.Value != 2 || r.Ratio != 1 {
		t.Errorf("API writes for a block = %+v, want 2: its creation and the completion of the request", r)
	}
}

// Runs one workload of the comparison with the Amazon VPC CNI for Berth only. Until its first addresses are warm, berthd
// makes as many EC2 calls as TestColdStartTakesFourCalls expects.
func TestColdStartInLab(t *testing.T) {
	o := vpccni.Order{BinDir: harness.BinDir, Assets: os.Getenv("KUBEBUILDER_ASSETS")}
	got, err := vpccni.ColdStart.Run(t.Context(), o, vpccni.Berth)
	harness.OK(t, err)
	if len(got) != 2 || got[0] != 4 || got[1] <= 0 {
		t.Errorf("measured %v, want 4 EC2 calls and a time", got)
	}
}
