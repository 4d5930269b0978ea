package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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

func TestJudge(t *testing.T) {
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
