package main

import (
	"fmt"
	"strings"

	"gotest.tools/gotestsum/testjson"
)

const (
	// notRun marks a line of test output about something that was not run although the test passed.
	notRun = "NOT RUN:"
	// otherSlice marks the reason of a test that is skipped because another slice of the rotation runs it.
	otherSlice = "OTHER SLICE:"
)

// printer prints the output that a go test command would have without -json.
type printer struct {
	out *progress

	notRun  []string          // lines with notRun, and skipped tests
	sliced  map[string]bool   // tests whose output has otherSlice, by package and name
	rotated int               // number of those that were skipped
	cached  map[string]bool   // packages with a result from Go's cache
	bugs    map[string]string // bugs in the output of packages, by package
	aloud   map[string]bool   // tests with a bug in their output, which is printed immediately, by package and name
}

func newPrinter(out *progress) *printer {
	return &printer{out: out, sliced: map[string]bool{}, cached: map[string]bool{}, bugs: map[string]string{}, aloud: map[string]bool{}}
}

// Err prints output that is not an event: go's own errors.
func (p *printer) Err(text string) error {
	p.print(text + "\n")
	return nil
}

// Event prints output of a package or a build immediately, and output of a test when the test has failed.
func (p *printer) Event(e testjson.TestEvent, result *testjson.Execution) error {
	p.out.count(e)
	name := strings.TrimSpace(e.Package + " " + e.Test)
	if e.Action == testjson.ActionOutput {
		p.note(name, e)
	}
	switch {
	case e.Action == testjson.ActionBuild, e.Action == testjson.ActionOutput && (e.PackageEvent() || p.aloud[name]) && !verbose(e.Output):
		p.print(e.Output)
	case e.Action == testjson.ActionSkip && p.sliced[name]:
		p.rotated++
	case e.Action == testjson.ActionSkip && !e.PackageEvent():
		p.notRun = append(p.notRun, name+": skipped")
	case e.Action == testjson.ActionFail && !e.PackageEvent():
		pkg := result.Package(e.Package)
		for _, line := range pkg.OutputLines(pkg.LastFailedByName(e.Test)) {
			if !verbose(line) {
				p.print(line)
			}
		}
	}
	return nil
}

// note records the information in a line of output.
func (p *printer) note(name string, e testjson.TestEvent) {
	if bug := bugIn(e.Output); bug != "" {
		p.bugs[e.Package], p.aloud[name] = bug, true
	}
	if _, what, found := strings.Cut(e.Output, notRun); found {
		p.notRun = append(p.notRun, fmt.Sprintf("%s: %s", name, strings.TrimSpace(what)))
	}
	if strings.Contains(e.Output, otherSlice) {
		p.sliced[name] = true
	}
	if e.PackageEvent() && strings.HasPrefix(e.Output, "ok  \t") && strings.Contains(e.Output, "\t(cached)") {
		p.cached[e.Package] = true
	}
}

// verbose reports whether go test prints a line with -json only.
func verbose(line string) bool {
	return line == "PASS\n" || strings.HasPrefix(line, "=== ")
}

func (p *printer) print(text string) { _, _ = p.out.Write([]byte(text)) }
