package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/ipfamily"
)

// result is the result of a spec.
type result struct {
	Name    string `json:"name"`
	Group   string `json:"group,omitempty"`
	Outcome string `json:"outcome"`
	// Why explains in one line why the spec failed, is not applicable, or passed only after a retry.
	Why     string  `json:"why,omitempty"`
	Seconds float64 `json:"seconds,omitempty"`
}

// results are the results of a run, as stored in a file.
type results struct {
	Mode       string       `json:"mode"`
	Families   ipfamily.Set `json:"ipFamilies"` // families of pods
	Kubernetes string       `json:"kubernetes"`
	Specs      []result     `json:"specs"`
}

// name distinguishes runs in file names.
func (r results) name() string { return r.Mode + "-" + string(r.Families) }

// file returns the path of the results in a directory.
func (r results) file(folder string) string { return filepath.Join(folder, r.name()+".json") }

// judge returns the results of the specs of a plan, according to the reports.
func judge(p plan, reports []specReport) []result {
	byName := map[string]specReport{}
	for _, r := range reports {
		if s, is := r.spec(); is {
			byName[s.name] = r
		}
	}
	out := slices.Clone(p.exclude)
	for _, s := range p.run {
		out = append(out, outcome(s, byName[s.name]))
	}
	slices.SortFunc(out, func(a, b result) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// suiteTimeout starts Ginkgo's message for specs interrupted by its --timeout.
const suiteTimeout = "A suite timeout occurred"

// setUpFailed returns why the tests failed before any spec, or "".
func setUpFailed(reports []specReport) string {
	for _, r := range reports {
		if _, is := r.spec(); !is && strings.HasSuffix(r.LeafNodeType, "BeforeSuite") && r.State == failed {
			return firstLine(r.Failure.Message)
		}
	}
	return ""
}

func outcome(s spec, r specReport) result {
	out := result{Name: s.name, Group: groupOf(s), Outcome: failed, Seconds: r.RunTime.Round(100 * time.Millisecond).Seconds()}
	message := firstLine(r.Failure.Message)
	switch {
	case r.State == passed:
		out.Outcome = passed
		if r.NumAttempts > 1 {
			out.Why = fmt.Sprintf("flaky: passed at attempt %d", r.NumAttempts)
		}
	case r.State == "skipped" && message != "": // the spec skipped itself
		out.Outcome, out.Why, out.Seconds = notApplicable, message, 0
	case r.State == "" || r.State == "skipped" || r.State == "interrupted" || strings.HasPrefix(message, suiteTimeout):
		out.Outcome, out.Seconds = notRun, 0
	case r.State == failed:
		out.Why = message
	case message != "": // panicked, timedout, interrupted, aborted
		out.Why = r.State + ": " + message
	default:
		out.Why = r.State
	}
	return out
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}

// count returns how many results have an outcome.
func count(all []result, outcome string) int {
	n := 0
	for _, r := range all {
		if r.Outcome == outcome {
			n++
		}
	}
	return n
}

func (r results) write(file string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	if err := os.WriteFile(file, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	return nil
}

// keep stores the results of whole groups in a directory, replacing earlier ones of these groups.
func (r results) keep(folder string, groups []string) error {
	before, err := readFile(r.file(folder))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	run := map[string]bool{} // specs may have changed groups
	for _, s := range r.Specs {
		run[s.Name] = true
	}
	for _, s := range before.Specs {
		if !slices.Contains(groups, s.Group) && !run[s.Name] && before.Kubernetes == r.Kubernetes {
			r.Specs = append(r.Specs, s)
		}
	}
	slices.SortFunc(r.Specs, func(a, b result) int { return cmp.Compare(a.Name, b.Name) })
	return r.write(r.file(folder))
}

// readResults reads the results in a directory, ordered by mode, IPv4 first.
func readResults(folder string) ([]results, error) {
	var out []results
	for _, mode := range modes {
		for _, families := range []ipfamily.Set{ipfamily.OnlyIPv4, ipfamily.Dual, ipfamily.OnlyIPv6} {
			r, err := readFile(results{Mode: mode, Families: families}.file(folder))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			} else if err != nil {
				return nil, err
			}
			out = append(out, r)
		}
	}
	return out, nil
}

func readFile(file string) (results, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return results{}, fmt.Errorf("read the results: %w", err)
	}
	var r results
	if err := json.Unmarshal(data, &r); err != nil {
		return results{}, fmt.Errorf("read the results in %s: %w", file, err)
	}
	return r, nil
}

// spec is one of Kubernetes' end-to-end tests.
type spec struct {
	name   string // as in reports, with the tags in brackets
	labels []string
}

func (s spec) has(label string) bool { return slices.Contains(s.labels, label) }

// Outcomes of a spec.
const (
	passed        = "passed"
	failed        = "failed"
	notRun        = "not run" // the tests ended before the spec
	notApplicable = "not applicable"
)

// ginkgoReport is the part of a Ginkgo report (--json-report, github.com/onsi/ginkgo/v2/types.Report) that is used.
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

// spec returns the spec of the report; false if it is not a test, such as the setup before all tests.
func (r specReport) spec() (spec, bool) {
	s := spec{name: strings.Join(append(slices.Clone(r.ContainerHierarchyTexts), r.LeafNodeText), " ")}
	for _, labels := range r.ContainerHierarchyLabels {
		s.labels = append(s.labels, labels...)
	}
	s.labels = append(s.labels, r.LeafNodeLabels...)
	return s, r.LeafNodeType == "It"
}
