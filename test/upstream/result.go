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

// result is what became of a spec.
type result struct {
	Name    string `json:"name"`
	Group   string `json:"group,omitempty"`
	Outcome string `json:"outcome"`
	// Why it failed or is not applicable, or how it passed after all, in a line.
	Why     string  `json:"why,omitempty"`
	Seconds float64 `json:"seconds,omitempty"`
}

// results are a run, as it is kept in a file.
type results struct {
	Mode       string       `json:"mode"`
	Families   ipfamily.Set `json:"ipFamilies"` // of pods
	Kubernetes string       `json:"kubernetes"`
	Specs      []result     `json:"specs"`
}

// name tells one run from another in the names of files.
func (r results) name() string { return r.Mode + "-" + string(r.Families) }

// file is where a folder has results.
func (r results) file(folder string) string { return filepath.Join(folder, r.name()+".json") }

// judge says what became of the specs of a plan, by the reports.
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

// suiteTimeout begins what Ginkgo says of the specs that ran when its --timeout was over.
const suiteTimeout = "A suite timeout occurred"

// setUpFailed is why the tests failed before any spec, or nothing.
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
	case r.State == "skipped" && message != "": // the spec itself said so
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

// count is how many results have an outcome.
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

// keep puts the results of whole groups into a folder, in place of the earlier ones
// of these groups.
func (r results) keep(folder string, groups []string) error {
	before, err := readFile(r.file(folder))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, s := range before.Specs {
		if !slices.Contains(groups, s.Group) && before.Kubernetes == r.Kubernetes {
			r.Specs = append(r.Specs, s)
		}
	}
	slices.SortFunc(r.Specs, func(a, b result) int { return cmp.Compare(a.Name, b.Name) })
	return r.write(r.file(folder))
}

// readResults reads the results that a folder has, in the order of the modes, and IPv4 first.
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
