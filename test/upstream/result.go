package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
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
	Mode       string   `json:"mode"`
	Kubernetes string   `json:"kubernetes"`
	Specs      []result `json:"specs"`
}

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
	before, err := readResults(folder, []string{r.Mode})
	if err != nil {
		return err
	}
	for _, b := range before {
		for _, s := range b.Specs {
			if !slices.Contains(groups, s.Group) && b.Kubernetes == r.Kubernetes {
				r.Specs = append(r.Specs, s)
			}
		}
	}
	slices.SortFunc(r.Specs, func(a, b result) int { return cmp.Compare(a.Name, b.Name) })
	return r.write(filepath.Join(folder, r.Mode+".json"))
}

// readResults reads the results of the modes of which a folder has any.
func readResults(folder string, modes []string) ([]results, error) {
	var out []results
	for _, mode := range modes {
		data, err := os.ReadFile(filepath.Join(folder, mode+".json"))
		if os.IsNotExist(err) {
			continue
		} else if err != nil {
			return nil, fmt.Errorf("read the results: %w", err)
		}
		var r results
		if err := json.Unmarshal(data, &r); err != nil {
			return nil, fmt.Errorf("read the results of mode %s: %w", mode, err)
		}
		out = append(out, r)
	}
	return out, nil
}
