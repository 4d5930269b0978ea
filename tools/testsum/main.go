// Command testsum reads the output of `go test -json` on standard input and
// prints what go test prints without -json: a line for each package, and the
// output of failed tests. It ends with a summary for people: packages and
// tests that passed and failed, and everything that was not run.
//
//	go test -json ./... | testsum
//
// It exits 1 when a package failed or nothing was tested at all, so that the
// verdict survives the pipe.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// silence is how long nothing is printed before a word that work goes on.
const silence = 30 * time.Second

func main() {
	// Interrupted, go test stops and closes the pipe; the summary of what ran
	// until then is still worth printing.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	s := newSummary(os.Stdout)
	started := time.Now()
	lines, errs := readLines(os.Stdin)
	tick := time.NewTicker(silence)
	defer tick.Stop()
	for lines != nil {
		select {
		case line, ok := <-lines:
			if !ok {
				lines = nil
				break
			}
			if s.add(line) {
				tick.Reset(silence)
			}
		case <-tick.C:
			fmt.Fprintf(os.Stderr, "... %s after %s\n", s.progress(), time.Since(started).Round(time.Second))
		}
	}
	if err := <-errs; err != nil {
		fmt.Fprintf(os.Stderr, "testsum: read test output: %v\n", err)
		os.Exit(1)
	}
	s.print(time.Since(started))
	if ctx.Err() != nil {
		fmt.Fprintln(os.Stderr, "testsum: interrupted, not everything was run")
	}
	if ctx.Err() != nil || !s.ok() {
		os.Exit(1)
	}
}
