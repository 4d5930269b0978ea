// Command testrun runs a `go test -json` command and prints what go test prints
// without -json: a line for each package, and the output of failed tests. A
// test that fails is run again alone, twice at most; one that then passes is
// flaky, is named in the summary and in a file, and more than three of them
// fail the run. A data race, a panic and a package that does not build are
// never excused. The summary has packages and tests that passed and failed,
// what was not run, and the slowest packages.
//
//	testrun -packages "A B" -- go test -json -count=1
//
// Packages of -later are started once the command of -await has ended; what it
// printed is the value of the environment variable -await-env for them. When it
// ends at once, all packages are started together, those of -later first.
//
// It exits with 1 when the run failed or nothing was tested.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
		os.Exit(1)
	}
}

func run() error {
	l := later{atOnce: 3 * time.Second}
	packages := flag.String("packages", "", "packages to test, in the order in which they are started")
	waiting := flag.String("later", "", "packages that wait for -await")
	flag.StringVar(&l.await, "await", "", "command that prints the value of -await-env")
	flag.StringVar(&l.env, "await-env", "", "environment variable of the packages of -later")
	flakyFile := flag.String("flaky-file", "", "file that names the flaky tests, with what they said; without any it is removed")
	flag.Parse()
	l.packages = strings.Fields(*waiting)
	if flag.NArg() == 0 {
		return errors.New("no command is given, expected one such as `-- go test -json`")
	}

	// Interrupted, go test stops and its output ends; the summary of what ran
	// until then is still worth printing.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	started := time.Now()
	report := newReport(os.Stdout)
	r := &runner{command: flag.Args(), report: report}
	err := r.all(ctx, strings.Fields(*packages), l)
	if ctx.Err() != nil {
		err = errors.New("interrupted, not everything was run")
	} else {
		r.again(ctx)
	}
	if err = errors.Join(err, report.writeFlaky(*flakyFile)); err != nil {
		report.trouble = append(report.trouble, err.Error())
	}
	if !report.print(time.Since(started)) {
		os.Exit(1)
	}
	return nil
}
