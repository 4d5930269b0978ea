package main

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthnet/berth/internal/ipfamily"
)

const report = `[{"SpecReports": [
	{"LeafNodeType": "BeforeSuite", "State": "passed"},
	{"ContainerHierarchyTexts": ["[sig-network] DNS"], "ContainerHierarchyLabels": [["sig-network"]], "LeafNodeType": "It", "LeafNodeText": "works", "State": "passed", "RunTime": 1234567890, "NumAttempts": 1},
	{"ContainerHierarchyTexts": ["[sig-network] DNS"], "ContainerHierarchyLabels": [["sig-network"]], "LeafNodeType": "It", "LeafNodeText": "works after all", "State": "passed", "NumAttempts": 2},
	{"ContainerHierarchyTexts": ["[sig-network] DNS"], "ContainerHierarchyLabels": [["sig-network"]], "LeafNodeType": "It", "LeafNodeText": "fails", "State": "failed", "RunTime": 2000000000, "Failure": {"Message": "no answer\nfrom there"}},
	{"ContainerHierarchyTexts": ["[sig-network] DNS"], "ContainerHierarchyLabels": [["sig-network"]], "LeafNodeType": "It", "LeafNodeText": "panics", "State": "panicked", "Failure": {"Message": "nil map"}},
	{"ContainerHierarchyTexts": ["[sig-network] DNS"], "ContainerHierarchyLabels": [["sig-network"]], "LeafNodeType": "It", "LeafNodeText": "was cut short", "State": "timedout", "RunTime": 2000000000, "Failure": {"Message": "A suite timeout occurred"}},
	{"ContainerHierarchyTexts": ["[sig-network] DNS"], "ContainerHierarchyLabels": [["sig-network"]], "LeafNodeType": "It", "LeafNodeText": "needs a cloud", "State": "skipped", "Failure": {"Message": "only for gce"}},
	{"ContainerHierarchyTexts": ["[sig-network] DNS"], "ContainerHierarchyLabels": [["sig-network"]], "LeafNodeType": "It", "LeafNodeText": "came too late", "State": "skipped"}
]}]`

func TestOutcomesOfSpecs(t *testing.T) {
	reports, err := readReport(strings.NewReader(report))
	if err != nil {
		t.Fatal(err)
	}
	p := plan{exclude: []result{{Name: "[sig-network] DNS left out", Group: "network", Outcome: notApplicable, Why: "so"}}}
	for _, leaf := range []string{"works", "works after all", "fails", "panics", "needs a cloud", "came too late", "was cut short", "was never seen"} {
		p.run = append(p.run, spec{"[sig-network] DNS " + leaf, []string{"sig-network"}})
	}
	of := func(leaf, outcome, why string, seconds float64) result {
		return result{Name: "[sig-network] DNS " + leaf, Group: "network", Outcome: outcome, Why: why, Seconds: seconds}
	}
	want := []result{
		of("came too late", notRun, "", 0),
		of("fails", failed, "no answer", 2),
		of("left out", notApplicable, "so", 0),
		of("needs a cloud", notApplicable, "only for gce", 0),
		of("panics", failed, "panicked: nil map", 0),
		of("was cut short", notRun, "", 0),
		of("was never seen", notRun, "", 0),
		of("works", passed, "", 1.2),
		of("works after all", passed, "flaky: passed at attempt 2", 0),
	}
	if d := cmp.Diff(want, judge(p, reports)); d != "" {
		t.Errorf("results (-want +got):\n%s", d)
	}
}

// Results of a mode and of families are kept apart from those of others, and those of groups that
// were not run now stay, if they are of the same Kubernetes.
func TestResultsAreKeptByGroup(t *testing.T) {
	folder := t.TempDir()
	of := func(mode string, families ipfamily.Set, version, group, name string) results {
		return results{Mode: mode, Families: families, Kubernetes: version, Specs: []result{{Name: name, Group: group, Outcome: passed}}}
	}
	for _, tc := range []struct {
		r    results
		want []string // of that mode and these families, afterwards
	}{
		{of("pool", ipfamily.Dual, "v1", "node", "a"), []string{"a"}},
		{of("node", ipfamily.OnlyIPv6, "v1", "node", "b"), []string{"b"}},
		{of("node", ipfamily.OnlyIPv4, "v1", "node", "c"), []string{"c"}},
		{of("node", ipfamily.OnlyIPv6, "v1", "network", "d"), []string{"b", "d"}},
		{of("node", ipfamily.OnlyIPv6, "v1", "node", "e"), []string{"d", "e"}},
		{of("node", ipfamily.OnlyIPv6, "v2", "node", "f"), []string{"f"}},
	} {
		if err := tc.r.keep(folder, []string{tc.r.Specs[0].Group}); err != nil {
			t.Fatal(err)
		}
		got, err := readFile(tc.r.file(folder))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, s := range got.Specs {
			names = append(names, s.Name)
		}
		if d := cmp.Diff(tc.want, names); d != "" || got.Mode != tc.r.Mode || got.Families != tc.r.Families || got.Kubernetes != tc.r.Kubernetes {
			t.Errorf("%s of %s, Kubernetes %s (-want +got):\n%s", got.Mode, got.Families, got.Kubernetes, d)
		}
	}
	all, err := readResults(folder)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, r := range all {
		names = append(names, r.name())
	}
	if d := cmp.Diff([]string{"node-ipv4", "node-ipv6", "pool-dual"}, names); d != "" {
		t.Errorf("results of the folder (-want +got):\n%s", d)
	}
	if err := os.WriteFile(all[0].file(folder), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readResults(folder); err == nil || !strings.Contains(err.Error(), "node-ipv4.json") {
		t.Errorf("a broken file: %v", err)
	}
	if err := all[0].keep(folder, []string{"node"}); err == nil {
		t.Error("results were kept over a file that cannot be read")
	}
}

func TestSetUpThatFailed(t *testing.T) {
	reports := []specReport{{LeafNodeType: "SynchronizedBeforeSuite", State: failed}}
	reports[0].Failure.Message = "no API server\nanywhere"
	if got := setUpFailed(reports); got != "no API server" {
		t.Errorf("said %q", got)
	}
	reports[0].State = passed
	if got := setUpFailed(reports); got != "" {
		t.Errorf("said %q of one that passed", got)
	}
}

func TestProgressOfSpecs(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(&out, 4)
	for _, part := range []string{
		"Will run 4 of 3206 specs\nSSSS", "•S", "SS•", "SS\n------\n", "SS• [FAILED] [12.3 ", "seconds]\n[sig-network] DNS works [It]\n", "text\n",
	} {
		if _, err := p.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	if out.String() != "  FAILED [sig-network] DNS works [It]\n" {
		t.Errorf("told %q", out.String())
	}
	out.Reset()
	p.tick(p.started.Add(chatty - time.Second))
	if out.Len() > 0 {
		t.Errorf("told %q too early", out.String())
	}
	p.tick(p.started.Add(chatty))
	if want := "  3 of 4, 1 failed, 30s\n"; out.String() != want {
		t.Errorf("told %q, expected %q", out.String(), want)
	}
}

// A runner that cannot be started is an error that names it.
func TestRunnerThatCannotBeStarted(t *testing.T) {
	s := suite{e2e: "/nowhere/e2e.test", ginkgo: "/nowhere/ginkgo", out: t.TempDir(), procs: 1, limit: time.Second}
	_, err := s.run(t.Context(), cluster{kubeconfig: "none"}, []spec{{name: "a"}}, newProgress(io.Discard, 1))
	if err == nil || !strings.Contains(err.Error(), "/nowhere/ginkgo") {
		t.Errorf("got %v", err)
	}
}
