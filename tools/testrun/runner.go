package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"time"

	"gotest.tools/gotestsum/testjson"
)

// reruns is how often a failed test is run again.
const reruns = 2

// runner starts go test and hands what it says to a report.
type runner struct {
	command []string // that flags and packages are appended to
	report  *report
}

// later are packages that wait for a command, which prints what they find in an
// environment variable.
type later struct {
	packages []string
	await    string
	env      string
	atOnce   time.Duration // how long the command may take to count as done already
}

// all runs every package once.
func (r *runner) all(ctx context.Context, packages []string, l later) error {
	if len(l.packages) == 0 {
		return r.first(ctx, packages)
	}
	awaited := make(chan error, 1)
	go func() { awaited <- l.wait(ctx) }()
	select {
	case err := <-awaited:
		if err != nil {
			return errors.Join(err, r.first(ctx, packages))
		}
		return r.first(ctx, append(l.packages, packages...))
	case <-time.After(l.atOnce):
	}
	var early error
	if len(packages) > 0 {
		r.report.say("Testing %d packages that need not wait for %s.", len(packages), l.await)
		early = r.first(ctx, packages)
	}
	if err := <-awaited; err != nil {
		return errors.Join(early, err)
	}
	return errors.Join(early, r.first(ctx, l.packages))
}

// wait runs the command and sets the environment variable of this process. When
// ctx ends, all that the command started is asked to end.
func (l later) wait(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, l.await)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("run %s: %w", l.await, err)
	}
	return os.Setenv(l.env, strings.TrimSpace(string(out)))
}

// first runs packages for the first time.
func (r *runner) first(ctx context.Context, packages []string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if len(packages) == 0 {
		return errors.New("no package is given")
	}
	result, err := r.test(ctx, packages)
	r.report.add(result)
	return err
}

// again runs failed tests again, each alone, until it passes.
func (r *runner) again(ctx context.Context) {
	if failed := len(r.report.failures); failed > flakyLimit {
		r.report.say("%d tests failed: more than %d are not run again.", failed, flakyLimit)
		return
	}
	for _, f := range r.report.failures {
		for f.runs <= reruns && f.excusable() && !f.flaky && ctx.Err() == nil {
			r.report.say("Running %s again, alone (%d of %d).", f.name(), f.runs, reruns)
			result, err := r.test(ctx, []string{f.pkg}, f.flags()...)
			if err != nil {
				r.report.trouble = append(r.report.trouble, err.Error())
			}
			f.repeated(result)
		}
	}
}

// flags of go test that choose nothing but the failed test.
func (f *failure) flags() []string {
	if f.test == "" {
		return nil
	}
	return []string{"-run", "^" + regexp.QuoteMeta(f.test) + "$"}
}

// outcome is what one go test command came to.
type outcome struct {
	*testjson.Execution                   // nil when it did not start
	bugs                map[string]string // see failures, by package
}

func (o outcome) packages() []string {
	if o.Execution == nil {
		return nil
	}
	return o.Packages()
}

// of returns a package's part; nil: there is none.
func (o outcome) of(name string) *testjson.Package {
	if o.Execution == nil {
		return nil
	}
	return o.Package(name)
}

// test runs the command for some packages. That tests fail is no error. That
// packages were not tested is one, and that the command ends in another way
// than go test does.
func (r *runner) test(ctx context.Context, packages []string, flags ...string) (outcome, error) {
	args := append(append(append([]string{}, r.command[1:]...), flags...), packages...)
	cmd := exec.Command(r.command[0], args...)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return outcome{}, fmt.Errorf("run %s: %w", r.command[0], err)
	}
	// A terminal's interrupt reaches go test as well, that of `kill` does not.
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(os.Interrupt) })()

	p := newPrinter(r.report.out)
	defer p.stop()
	result, err := testjson.ScanTestOutput(testjson.ScanConfig{Stdout: stdout, Handler: p, IgnoreNonJSONOutputLines: true})
	r.report.notRun = append(r.report.notRun, p.notRun...)
	o := outcome{result, p.bugs}
	if err != nil {
		_, _ = io.Copy(io.Discard, stdout)
		return o, errors.Join(fmt.Errorf("read the output of go test: %w", err), cmd.Wait())
	}
	return o, o.verdict(cmd.Wait(), packages)
}

// verdict compares how go test ended with what it said of the packages. Its exit
// code 1 stands for failed packages.
func (o outcome) verdict(ended error, packages []string) error {
	var untested []string
	failed := false
	for _, name := range packages {
		switch p := o.of(name); {
		case p == nil || !p.Result().IsTerminal():
			untested = append(untested, name)
		case p.Result() == testjson.ActionFail:
			failed = true
		}
	}
	if len(untested) > 0 {
		return errors.Join(fmt.Errorf("not tested to the end: %s", strings.Join(untested, " ")), ended)
	}
	var exit *exec.ExitError
	if failed && errors.As(ended, &exit) && exit.ExitCode() == 1 {
		return nil
	}
	if ended != nil {
		return fmt.Errorf("go test: %w", ended)
	}
	return nil
}
