package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"gotest.tools/gotestsum/testjson"
)

// reruns is the maximum number of repeated runs of a failed test.
const reruns = 2

// runner runs go test and passes the results to a report.
type runner struct {
	command []string // flags and packages are appended to it
	report  *report
}

// group is a set of packages tested by one command, with its own flags and environment
// variables.
type group struct{ env, flags, packages []string }

// parseGroup reads `[[NAME=VALUE...] [FLAG...] ::] PACKAGE...`.
func parseGroup(text string) (g group) {
	own, packages, found := strings.Cut(text, "::")
	if !found {
		own, packages = "", text
	}
	g.packages = strings.Fields(packages)
	for _, word := range strings.Fields(own) {
		if len(g.flags) == 0 && !strings.HasPrefix(word, "-") && strings.Contains(word, "=") {
			g.env = append(g.env, word)
		} else {
			g.flags = append(g.flags, word)
		}
	}
	return g
}

// merge joins groups with the same flags and variables, and drops empty groups.
func merge(groups []group) (merged []group) {
	for _, g := range groups {
		same := slices.IndexFunc(merged, func(m group) bool { return slices.Equal(m.env, g.env) && slices.Equal(m.flags, g.flags) })
		switch {
		case len(g.packages) == 0:
		case same < 0:
			merged = append(merged, g)
		default:
			merged[same].packages = slices.Concat(merged[same].packages, g.packages)
		}
	}
	return merged
}

// later are packages that wait for a command, whose output they get in an environment variable.
type later struct {
	groups []group
	await  string
	env    string
	atOnce time.Duration // time within which the command counts as already done
}

// all runs every package once.
func (r *runner) all(ctx context.Context, groups []group, l later) error {
	groups, l.groups = merge(groups), merge(l.groups)
	if len(l.groups) == 0 {
		return r.first(ctx, groups)
	}
	awaited := make(chan error, 1)
	go func() { awaited <- l.wait(ctx) }()
	select {
	case err := <-awaited:
		if err != nil {
			return errors.Join(err, r.first(ctx, groups))
		}
		return r.first(ctx, merge(append(l.groups, groups...)))
	case <-time.After(l.atOnce):
	}
	var early error
	if len(groups) > 0 {
		n := 0
		for _, g := range groups {
			n += len(g.packages)
		}
		r.report.say("Testing %d packages that do not depend on %s.", n, l.await)
		early = r.first(ctx, groups)
	}
	if err := <-awaited; err != nil {
		return errors.Join(early, err)
	}
	return errors.Join(early, r.first(ctx, l.groups))
}

// wait runs the command and sets the environment variable of this process. When ctx ends, the command and all processes
// that it started are asked to end.
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

// first runs packages for the first time, with all groups in parallel.
func (r *runner) first(ctx context.Context, groups []group) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if len(groups) == 0 {
		return errors.New("no package is given")
	}
	defer r.report.out.watch()()
	outcomes, errs := make([]outcome, len(groups)), make([]error, len(groups))
	var wg sync.WaitGroup
	for i, g := range groups {
		outcomes[i].group = g
		var env []string
		if outcomes[i].accounts, env, errs[i] = r.report.accounts.forCommand(); errs[i] == nil {
			wg.Go(func() { errs[i] = r.test(ctx, &outcomes[i], g, env) })
		}
	}
	wg.Wait()
	for _, o := range outcomes {
		r.report.add(o)
	}
	return errors.Join(errs...)
}

// again runs failed tests again, each alone, until it passes.
func (r *runner) again(ctx context.Context) {
	if failed := len(r.report.failures); failed > flakyLimit {
		r.report.say("%d tests failed: more than %d are not run again.", failed, flakyLimit)
		return
	}
	defer r.report.out.watch()()
	for _, f := range r.report.failures {
		for f.runs <= reruns && f.excusable() && !f.flaky && ctx.Err() == nil {
			r.report.say("Running %s again, alone (%d of %d).", f.name(), f.runs, reruns)
			var o outcome
			if err := r.test(ctx, &o, f.alone(), nil); err != nil {
				r.report.trouble = append(r.report.trouble, err.Error())
			}
			r.report.notRun = append(r.report.notRun, o.notRun...)
			f.repeated(o)
		}
	}
}

// alone returns a group with only the failed test. Go's cache may have an earlier run in
// which it passed.
func (f *failure) alone() group {
	g := group{env: f.group.env, flags: append(slices.Clone(f.group.flags), "-count=1"), packages: []string{f.pkg}}
	if f.test != "" {
		g.flags = append(g.flags, "-run", "^"+regexp.QuoteMeta(f.test)+"$")
	}
	return g
}

// outcome is the result of one go test command.
type outcome struct {
	*testjson.Execution                   // nil if it did not start
	bugs                map[string]string // see failures, by package
	cached              map[string]bool   // packages
	notRun              []string
	rotated             int

	group    group
	accounts string        // folder for the usage of its packages; empty: not recorded
	cpu      time.Duration // CPU time of the command and all its descendants
}

func (o outcome) packages() []string {
	if o.Execution == nil {
		return nil
	}
	return o.Packages()
}

// of returns the part of a package, or nil.
func (o outcome) of(name string) *testjson.Package {
	if o.Execution == nil {
		return nil
	}
	return o.Package(name)
}

// test runs the command for a group. Failed tests are not an error. It is an error if packages were not tested, or if the
// command ends in another way than go test does.
func (r *runner) test(ctx context.Context, o *outcome, g group, env []string) error {
	cmd := exec.Command(r.command[0], slices.Concat(r.command[1:], g.flags, g.packages)...)
	cmd.Env = slices.Concat(os.Environ(), g.env, env)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return fmt.Errorf("run %s: %w", r.command[0], err)
	}
	// An interrupt from the terminal also reaches go test, but one from `kill` does not.
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(os.Interrupt) })()

	p := newPrinter(r.report.out)
	o.Execution, err = testjson.ScanTestOutput(testjson.ScanConfig{Stdout: stdout, Handler: p, IgnoreNonJSONOutputLines: true})
	o.bugs, o.cached, o.notRun, o.rotated = p.bugs, p.cached, p.notRun, p.rotated
	if err != nil {
		_, _ = io.Copy(io.Discard, stdout)
		err = fmt.Errorf("read the output of go test: %w", err)
	}
	ended := cmd.Wait()
	o.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	if err != nil {
		return errors.Join(err, ended)
	}
	return o.verdict(ended, g.packages)
}

// verdict checks that the exit code of go test matches its results. Exit code 1 means that
// packages failed.
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
