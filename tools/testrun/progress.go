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
	// silence is the time without output after which a progress line is printed.
	silence = 30 * time.Second
	// long is the running time of a package from which on the progress line shows it.
	long = time.Minute
)

// progress is the shared output of all commands of a run, and tracks their progress.
type progress struct {
	out     io.Writer
	started time.Time

	mu          sync.Mutex           // guards the fields below, and writes to out
	quiet       *time.Timer          // nil: no command runs
	running     map[string]time.Time // when a package started
	done, tests int
}

func newProgress(out io.Writer) *progress {
	return &progress{out: out, started: time.Now(), running: map[string]time.Time{}}
}

// watch prints a line whenever there was no output for a while, until stop is called.
func (p *progress) watch() (stop func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.running) // processes of killed commands
	p.quiet = time.AfterFunc(silence, func() {
		line := p.line(time.Now())
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.quiet != nil {
			fmt.Fprintf(os.Stderr, "... %s after %s\n", line, time.Since(p.started).Round(time.Second))
			p.quiet.Reset(silence)
		}
	})
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.quiet.Stop()
		p.quiet = nil
	}
}

func (p *progress) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.quiet != nil {
		p.quiet.Reset(silence)
	}
	return p.out.Write(text)
}

func (p *progress) count(e testjson.TestEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !e.PackageEvent():
		if e.Action.IsTerminal() {
			p.tests++
		}
	case e.Action == "start":
		p.running[e.Package] = time.Now()
	case e.Action.IsTerminal():
		delete(p.running, e.Package)
		p.done++
	}
}

// line returns the progress of the run.
func (p *progress) line(now time.Time) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.running) == 0 {
		return fmt.Sprintf("%d packages done, building", p.done)
	}
	running := make([]string, 0, len(p.running))
	for pkg, started := range p.running {
		name := pkg[strings.LastIndexByte(pkg, '/')+1:]
		if ran := now.Sub(started); ran > long {
			name += fmt.Sprintf(" %.0f s", ran.Seconds())
		}
		running = append(running, name)
	}
	slices.Sort(running)
	return fmt.Sprintf("%d packages and %d tests done, running %s", p.done, p.tests, strings.Join(running, ", "))
}
