package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gotest.tools/gotestsum/testjson"
)

const (
	// flakyLimit is the maximum number of tests that may fail first and pass when they are run again.
	flakyLimit = 3
	// dearest is the number of packages in the summary's list by CPU time.
	dearest = 10
	// dearestShown is the number of packages and tests listed for an exceeded budget.
	dearestShown = 5
)

// report collects the results of all go test commands.
type report struct {
	out      *progress
	module   string // path of the module whose packages are tested
	packages counts
	tests    counts
	results  map[string]result // by import path
	accounts *accounts
	budget   *budget  // nil: none
	notRun   []string // lines with notRun, and skipped tests
	rotated  int      // number of tests that another slice of the rotation runs
	failures []*failure
	trouble  []string // other reasons why the run failed
}

// counts are results of tests or packages.
type counts struct{ passed, failed int }

// result is the result of the first run of a package.
type result struct {
	passed, cached bool
	took           time.Duration
	tests          []testjson.TestCase
}

func newReport(out io.Writer) *report {
	return &report{out: newProgress(out), results: map[string]result{}, accounts: newAccounts("")}
}

func (r *report) say(format string, args ...any) {
	fmt.Fprintf(r.out, format+"\n", args...)
}

// add records the outcome of the first run of packages.
func (r *report) add(o outcome) {
	r.notRun = append(r.notRun, o.notRun...)
	r.rotated += o.rotated
	if err := r.accounts.add(o.accounts, o.cpu); err != nil {
		r.trouble = append(r.trouble, err.Error())
	}
	for _, name := range o.packages() {
		p := o.of(name)
		switch p.Result() {
		case testjson.ActionPass:
			r.packages.passed++
		case testjson.ActionFail:
			r.packages.failed++
		default: // output of a build
			continue
		}
		r.tests.passed += len(p.Passed)
		r.tests.failed += len(p.Failed)
		r.results[name] = result{p.Result() == testjson.ActionPass, o.cached[name], p.Elapsed(), p.TestCases()}
		for _, f := range failures(name, p, o.bugs[name]) {
			f.group = o.group
			r.failures = append(r.failures, f)
		}
	}
}

// ok reports whether something was tested and everything passed, possibly in a repeated run.
func (r *report) ok() bool {
	flaky := r.flaky()
	return len(r.trouble) == 0 && len(flaky) == len(r.failures) && len(flaky) <= flakyLimit
}

func (r *report) flaky() []*failure {
	return slices.DeleteFunc(slices.Clone(r.failures), func(f *failure) bool { return !f.flaky })
}

// print prints the summary and reports whether the run passed.
func (r *report) print(took time.Duration) (ok bool) {
	r.say("\n%-9s %d ok, %d failed", "packages", r.packages.passed, r.packages.failed)
	r.say("%-9s %d passed, %d failed", "tests", r.tests.passed, r.tests.failed)
	if r.rotated > 0 {
		r.say("%-9s %d tests of other slices, which are run by make e2e", "rotation", r.rotated)
	}
	if why := r.accounts.unknown; len(why) > 0 {
		r.notRun = append(r.notRun, "process starts: "+why[0])
	}
	r.list("NOT RUN", r.notRun)
	var flaky, failed []string
	for _, f := range r.failures {
		switch {
		case f.flaky:
			flaky = append(flaky, fmt.Sprintf("%s: failed %d of %d times", f.name(), f.runs-1, f.runs))
		case f.bug != "":
			failed = append(failed, f.name()+": "+f.bug)
		default:
			failed = append(failed, fmt.Sprintf("%s: failed %d of %d times", f.name(), f.runs, f.runs))
		}
	}
	r.list("flaky", flaky)
	r.say("%-9s %s", "time", took.Round(time.Second))
	r.printUsage()
	if r.budget != nil {
		r.trouble = append(r.trouble, r.budget.verdicts(r)...)
	}
	if len(flaky) > flakyLimit {
		r.trouble = append(r.trouble, fmt.Sprintf("%d tests are flaky, at most %d are accepted", len(flaky), flakyLimit))
	}
	if r.tests.passed == 0 && len(flaky) == 0 {
		r.trouble = append(r.trouble, "no test passed")
	}
	if failed = append(failed, r.trouble...); len(failed) > 0 {
		r.list("failed", failed)
	}
	return r.ok()
}

func (r *report) list(title string, lines []string) {
	r.say("%-9s %d", title, len(lines))
	for _, line := range lines {
		r.say("  %s", line)
	}
}

// writeFlaky writes the names of flaky tests with the output of their first failure, or
// removes the file if there are none.
func (r *report) writeFlaky(path string) error {
	if path == "" {
		return nil
	}
	var text strings.Builder
	for _, f := range r.flaky() {
		fmt.Fprintf(&text, "%s: failed %d of %d times\n", f.name(), f.runs-1, f.runs)
		for line := range strings.Lines(f.said) {
			text.WriteString("  | " + line)
		}
	}
	if text.Len() == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove the list of flaky tests: %w", err)
		}
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("list flaky tests: %w", err)
	}
	if err := os.WriteFile(path, []byte(text.String()), 0o644); err != nil {
		return fmt.Errorf("list flaky tests: %w", err)
	}
	r.say("The output of the flaky tests is in %s.", path)
	return nil
}
