package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"gotest.tools/gotestsum/testjson"
)

const (
	// silence is how long nothing is printed before a word that work goes on.
	silence = 30 * time.Second
	// notRun marks a line of test output that names something that was not run
	// although the test passed.
	notRun = "NOT RUN:"
)

// printer prints what go test would without -json, as it comes.
type printer struct {
	out     io.Writer
	started time.Time
	quiet   *time.Timer

	notRun []string          // lines with notRun, and skipped tests
	bugs   map[string]string // that output of a package told of, by package
	aloud  map[string]bool   // tests whose output told of one, by package and name: it is printed at once

	mu          sync.Mutex      // guards what follows: the timer reads it
	running     map[string]bool // packages
	done, tests int
}

func newPrinter(out io.Writer) *printer {
	p := &printer{out: out, started: time.Now(), running: map[string]bool{}, bugs: map[string]string{}, aloud: map[string]bool{}}
	p.quiet = time.AfterFunc(silence, func() {
		fmt.Fprintf(os.Stderr, "... %s after %s\n", p.progress(), time.Since(p.started).Round(time.Second))
		p.quiet.Reset(silence)
	})
	return p
}

func (p *printer) stop() { p.quiet.Stop() }

// Err prints what is no event: go's own complaints.
func (p *printer) Err(text string) error {
	p.print(text + "\n")
	return nil
}

// Event prints what belongs to a package or a build at once, and what a test
// said once it has failed.
func (p *printer) Event(e testjson.TestEvent, result *testjson.Execution) error {
	p.count(e)
	name := strings.TrimSpace(e.Package + " " + e.Test)
	if bug := bugIn(e.Output); bug != "" && e.Action == testjson.ActionOutput {
		p.bugs[e.Package], p.aloud[name] = bug, true
	}
	if _, what, found := strings.Cut(e.Output, notRun); found && e.Action == testjson.ActionOutput {
		p.notRun = append(p.notRun, fmt.Sprintf("%s: %s", name, strings.TrimSpace(what)))
	}
	switch {
	case e.Action == testjson.ActionBuild, e.Action == testjson.ActionOutput && (e.PackageEvent() || p.aloud[name]) && !verbose(e.Output):
		p.print(e.Output)
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

// verbose tells the lines that go test -json has and plain go test has not.
func verbose(line string) bool {
	return line == "PASS\n" || strings.HasPrefix(line, "=== ")
}

func (p *printer) print(text string) {
	_, _ = io.WriteString(p.out, text)
	p.quiet.Reset(silence)
}

func (p *printer) count(e testjson.TestEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !e.PackageEvent():
		if e.Action.IsTerminal() {
			p.tests++
		}
	case e.Action == "start":
		p.running[e.Package] = true
	case e.Action.IsTerminal():
		delete(p.running, e.Package)
		p.done++
	}
}

// progress is one line on how far the run is.
func (p *printer) progress() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.running) == 0 {
		return fmt.Sprintf("%d packages done, building", p.done)
	}
	running := make([]string, 0, len(p.running))
	for pkg := range p.running {
		running = append(running, pkg[strings.LastIndexByte(pkg, '/')+1:])
	}
	slices.Sort(running)
	return fmt.Sprintf("%d packages and %d tests done, running %s", p.done, p.tests, strings.Join(running, ", "))
}
