package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// spec is one test of Kubernetes' end-to-end tests.
type spec struct {
	name   string // as its reports call it, with the tags in brackets
	labels []string
}

func (s spec) has(label string) bool { return slices.Contains(s.labels, label) }

// Outcomes of a spec.
const (
	passed        = "passed"
	failed        = "failed"
	notRun        = "not run" // the tests ended before it
	notApplicable = "not applicable"
)

// ginkgoReport is what is read of a report that Ginkgo writes with --json-report
// (github.com/onsi/ginkgo/v2/types.Report).
type ginkgoReport []struct {
	SpecReports []specReport
}

type specReport struct {
	ContainerHierarchyTexts  []string
	ContainerHierarchyLabels [][]string
	LeafNodeType             string
	LeafNodeText             string
	LeafNodeLabels           []string
	State                    string
	RunTime                  time.Duration
	NumAttempts              int
	Failure                  struct {
		Message string
	}
}

// readReport reads a Ginkgo report.
func readReport(r io.Reader) ([]specReport, error) {
	var report ginkgoReport
	if err := json.NewDecoder(r).Decode(&report); err != nil {
		return nil, fmt.Errorf("read the report of the tests: %w", err)
	}
	var out []specReport
	for _, suite := range report {
		out = append(out, suite.SpecReports...)
	}
	return out, nil
}

// spec is what the report is about; false for what is no test, such as the set-up
// before all of them.
func (r specReport) spec() (spec, bool) {
	s := spec{name: strings.Join(append(slices.Clone(r.ContainerHierarchyTexts), r.LeafNodeText), " ")}
	for _, labels := range r.ContainerHierarchyLabels {
		s.labels = append(s.labels, labels...)
	}
	s.labels = append(s.labels, r.LeafNodeLabels...)
	return s, r.LeafNodeType == "It"
}
