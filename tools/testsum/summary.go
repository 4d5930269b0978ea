package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// notRun marks a line of test output that names something that was not run
// although the test passed.
const notRun = "NOT RUN:"

// event is one line of `go test -json` (go doc test2json, and "go help
// buildjson" for the build ones).
type event struct {
	Action     string
	Package    string
	ImportPath string // build events have this in place of Package
	Test       string
	Output     string
}

// counts are results of tests or packages.
type counts struct{ passed, failed, skipped int }

func (c *counts) add(action string) {
	switch action {
	case "pass":
		c.passed++
	case "fail":
		c.failed++
	case "skip":
		c.skipped++
	}
}

// summary collects the events of one go test run.
type summary struct {
	out      io.Writer
	packages counts
	tests    counts
	failed   []string            // failed packages and tests, in the order of their end
	notRun   []string            // lines with notRun and skipped tests
	running  map[string]bool     // packages that have started and not ended
	pending  map[string][]string // output of tests not known to have failed, by package and test
}

func newSummary(out io.Writer) *summary {
	return &summary{out: out, running: map[string]bool{}, pending: map[string][]string{}}
}

// readLines sends the lines of r and closes the channel at its end; the second
// channel then has the read error, nil at a clean end.
func readLines(r io.Reader) (<-chan []byte, <-chan error) {
	lines, errs := make(chan []byte), make(chan error, 1)
	go func() {
		defer close(lines)
		buf := bufio.NewReader(r)
		for {
			line, err := buf.ReadBytes('\n')
			if len(line) > 0 {
				lines <- line
			}
			if err != nil {
				if errors.Is(err, io.EOF) {
					err = nil
				}
				errs <- err
				return
			}
		}
	}()
	return lines, errs
}

// add takes one line of input and tells whether it printed something. What is
// no event (go's own complaints) is printed as it is.
func (s *summary) add(line []byte) bool {
	var e event
	if err := json.Unmarshal(line, &e); err != nil || e.Action == "" {
		s.write(string(line))
		return true
	}
	switch e.Action {
	case "start":
		s.running[e.Package] = true
	case "output", "build-output":
		return s.output(e)
	case "pass", "fail", "skip":
		return s.end(e)
	}
	return false
}

// output prints what belongs to a package or build at once and keeps what
// belongs to a test until it is known whether the test failed.
func (s *summary) output(e event) bool {
	if i := strings.Index(e.Output, notRun); i >= 0 {
		s.notRun = append(s.notRun, fmt.Sprintf("%s: %s", name(e), strings.TrimSpace(e.Output[i+len(notRun):])))
	}
	if verbose(e.Output) {
		return false
	}
	if e.Test != "" {
		s.pending[name(e)] = append(s.pending[name(e)], e.Output)
		return false
	}
	s.write(e.Output)
	return true
}

// verbose tells the lines that go test -json has and plain go test has not.
func verbose(line string) bool {
	return line == "PASS\n" || strings.HasPrefix(line, "=== ")
}

// end counts a result, and prints what a failed test or package said.
func (s *summary) end(e event) bool {
	if e.Test == "" {
		delete(s.running, e.Package)
		s.packages.add(e.Action)
		if e.Action == "fail" {
			s.failed = append(s.failed, e.Package)
			return s.flushUnfinished(e.Package)
		}
		return false
	}
	s.tests.add(e.Action)
	output := s.pending[name(e)]
	delete(s.pending, name(e))
	switch e.Action {
	case "fail":
		s.failed = append(s.failed, name(e))
		s.write(strings.Join(output, ""))
		return true
	case "skip":
		s.notRun = append(s.notRun, name(e)+": skipped")
	}
	return false
}

// flushUnfinished prints the output of the tests that a panic or a time-out
// cut off.
func (s *summary) flushUnfinished(pkg string) bool {
	var cut []string
	for test := range s.pending {
		if strings.HasPrefix(test, pkg+" ") {
			cut = append(cut, test)
		}
	}
	slices.Sort(cut)
	for _, test := range cut {
		s.write(strings.Join(s.pending[test], ""))
		delete(s.pending, test)
	}
	return len(cut) > 0
}

func name(e event) string {
	if e.Test == "" {
		return e.Package
	}
	return e.Package + " " + e.Test
}

func (s *summary) write(text string) { _, _ = io.WriteString(s.out, text) }

// ok tells whether anything was tested and nothing failed.
func (s *summary) ok() bool { return s.packages.failed == 0 && s.packages.passed > 0 }

// progress is one line on how far the run is.
func (s *summary) progress() string {
	done := s.packages.passed + s.packages.failed + s.packages.skipped
	if len(s.running) == 0 {
		return fmt.Sprintf("%d packages done, building", done)
	}
	running := make([]string, 0, len(s.running))
	for pkg := range s.running {
		running = append(running, pkg[strings.LastIndexByte(pkg, '/')+1:])
	}
	slices.Sort(running)
	return fmt.Sprintf("%d packages and %d tests done, running %s", done, s.tests.passed+s.tests.failed, strings.Join(running, ", "))
}

// print ends the output with the summary.
func (s *summary) print(took time.Duration) {
	fmt.Fprintf(s.out, "\n%-9s %d ok, %d failed, %d without tests\n", "packages", s.packages.passed, s.packages.failed, s.packages.skipped)
	fmt.Fprintf(s.out, "%-9s %d passed, %d failed\n", "tests", s.tests.passed, s.tests.failed)
	fmt.Fprintf(s.out, "%-9s %d\n", "NOT RUN", len(s.notRun))
	for _, line := range s.notRun {
		fmt.Fprintf(s.out, "  %s\n", line)
	}
	fmt.Fprintf(s.out, "%-9s %s\n", "time", took.Round(time.Second))
	if len(s.failed) > 0 {
		fmt.Fprintln(s.out, "failed:")
		for _, line := range s.failed {
			fmt.Fprintf(s.out, "  %s\n", line)
		}
	}
}
