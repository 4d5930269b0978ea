// Command testrun runs a `go test -json` command and prints what go test prints
// without -json: a line for each package, and the output of failed tests. A
// test that fails is run again alone, twice at most; one that then passes is
// flaky, is named in the summary and in a file, and more than three of them
// fail the run. A data race, a panic and a package that does not build are
// never excused. The summary has packages and tests that passed and failed,
// what was not run, and the packages that used most CPU time.
//
//	testrun -packages "-race :: A B" -packages "C D" -- go test -json
//
// Each -packages is a group, which a command of its own tests, with the group's
// flags behind the command's; all run side by side. In front of the flags may be environment
// variables: "CGO_ENABLED=1 -race :: A B". Groups with the same flags are one.
//
// Packages of -later are started once the command of -await has ended; what it
// printed is the value of the environment variable -await-env for them. When it
// ends at once, all packages are started together, those of -later first.
//
// The command is given a further flag -exec, by which this program starts test programs and
// accounts for them: what a test program used, and all that it started, also in
// other sessions and after their parents have ended. CPU time is that of
// wait4(2), starts of programs are counted by acct(2), and not without a PID namespace for the
// tests. A run exceeds the -budget, a table of CPU seconds by package, when a
// package uses more than 1.5 times its row (25 without one), or all together more
// than the first row, "total". Results from Go's cache cost nothing, and tests that are run again
// are not counted.
//
// It exits with 1 when the run failed, exceeded its budget, or nothing was tested.
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
	case errors.Is(err, errFailed): // the summary says so
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "testrun:", err)
		os.Exit(1)
	}
}

// accountMain ends as the program does, or with 1 when its usage is not known.
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
	flakyFile := flag.String("flaky-file", "", "file that names the flaky tests, with what they said; without any it is removed")
	budgetFile := flag.String("budget", "", "table of the CPU seconds that packages may use")
	accountsFile := flag.String("accounts-file", "", "file that is written with what each package used")
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

	// Interrupted, go test stops and its output ends; the summary of what ran
	// until then is still worth printing.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	started := time.Now()
	r := &runner{command: append(flag.Args(), "-exec="+self+" account"), report: report}
	err = r.all(ctx, groups, l)
	if ctx.Err() != nil {
		err = errors.New("interrupted, not everything was run")
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
