// Command testrun runs a `go test -json` command and prints the output of go test without -json: a line for each package,
// and the output of failed tests. A failed test is run again alone, at most twice. If it then passes it is flaky: it is
// listed in the summary and in a file, and more than three flaky tests fail the run. A data race, a panic and a package
// that does not build are never excused. The summary lists packages and tests that passed and failed, tests that were
// not run, and the packages that used most CPU time.
//
//	testrun -packages "-race :: A B" -packages "C D" -- go test -json
//
// Each -packages is a group, which is tested by its own command, with the group's flags after the command's; all run side
// by side. Environment variables may precede the flags: "CGO_ENABLED=1 -race :: A B". Groups with the same flags are
// merged.
//
// Packages of -later are started when the command of -await has ended, with its output as the value of the environment
// variable -await-env. If the command ends immediately, all packages are started together, those of -later first.
//
// The command gets an additional flag -exec, with which this program starts test programs and records the usage of a test
// program and all processes that it started, also in other sessions and after their parents have ended. CPU time comes
// from wait4(2). Starts of programs are counted with acct(2), which needs a PID namespace for the tests. A run exceeds the
// -budget, a table of CPU seconds by package, when a package uses more than twice its row (25 without one), or all
// packages together more than the first row, "total". If the median package exceeded its row, all limits are higher by that
// factor, up to 2.5. Results from Go's cache cost nothing, and repeated tests are not counted.
//
// It exits with 1 if the run failed, exceeded its budget, or tested nothing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

var errFailed = errors.New("the run failed")

func main() {
	if len(os.Args) > 1 && os.Args[1] == "account" {
		accountMain(os.Args[2:])
	}
	switch err := run(); {
	case errors.Is(err, errFailed): // reported in the summary
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "testrun:", err)
		os.Exit(1)
	}
}

// accountMain ends like the program, or with 1 if its usage is unknown.
func accountMain(args []string) {
	ended, err := account(args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testrun account:", err)
		os.Exit(1)
	}
	endAs(ended)
}

func run() error {
	l := later{atOnce: 3 * time.Second}
	var groups []group
	flag.Func("packages", "packages to test, in the order in which they are started, `[FLAGS ::] PACKAGES`; may be repeated", func(s string) error {
		groups = append(groups, parseGroup(s))
		return nil
	})
	flag.Func("later", "packages that wait for -await, `[FLAGS ::] PACKAGES`; may be repeated", func(s string) error {
		l.groups = append(l.groups, parseGroup(s))
		return nil
	})
	flag.StringVar(&l.await, "await", "", "command that prints the value of -await-env")
	flag.StringVar(&l.env, "await-env", "", "environment variable of the packages of -later")
	flakyFile := flag.String("flaky-file", "", "file for the flaky tests and their output; removed if there are none")
	budgetFile := flag.String("budget", "", "table of the CPU seconds that packages may use")
	accountsFile := flag.String("accounts-file", "", "file for the usage of each package")
	flag.Parse()
	if flag.NArg() == 0 {
		return errors.New("no command is given, expected one such as `-- go test -json`")
	}

	report := newReport(os.Stdout)
	var err error
	if report.module, err = modulePath("."); err != nil {
		return fmt.Errorf("expected to be run in the root of a module: %w", err)
	}
	if *budgetFile != "" {
		if report.budget, err = readBudget(*budgetFile, "."); err != nil {
			return err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "testrun-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	report.accounts = newAccounts(dir)

	// When interrupted, go test stops and its output ends. The summary of the tests that ran is still printed.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	started := time.Now()
	r := &runner{command: append(flag.Args(), "-exec="+self+" account"), report: report}
	err = r.all(ctx, groups, l)
	if ctx.Err() != nil {
		err = errors.New("interrupted, some tests were not run")
	} else {
		r.again(ctx)
	}
	if err = errors.Join(err, report.writeFlaky(*flakyFile), report.writeUsage(*accountsFile)); err != nil {
		report.trouble = append(report.trouble, err.Error())
	}
	if !report.print(time.Since(started)) {
		return errFailed
	}
	return nil
}
