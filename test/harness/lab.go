package harness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthnet/berth/lab"
	"github.com/berthnet/berth/lab/oracle"
	"github.com/berthnet/berth/lab/run/poll"
	"github.com/berthnet/berth/lab/run/proc"
)

// Raise starts a lab with the programs under test. It is removed when the test
// ends, after a look at the programs' logs for data races and panics. Dir,
// with Nodes and InstanceType, Spec are filled in, and BinDir if there is none.
func Raise(t *testing.T, o lab.Options) *lab.Lab {
	t.Helper()
	Slot(t)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	l, err := Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, p := range Programs(l) {
			CheckLog(t, p)
		}
		if err := end(l); err != nil {
			t.Error(err)
		}
	})
	return l
}

// Start is Raise for what is no test of its own: the caller looks at the logs
// of Programs, and removes the lab as end does.
func Start(ctx context.Context, o lab.Options) (*lab.Lab, error) {
	dir, err := os.MkdirTemp("", "lab-") // t.TempDir's paths are too long for sockets
	if err != nil {
		return nil, err
	}
	o.Dir, o.BinDir = dir, cmp.Or(o.BinDir, BinDir)
	l, err := lab.Start(ctx, o)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("raise a lab: %w", err), os.RemoveAll(dir))
	}
	return l, nil
}

// end removes a lab and its directory. The error is also what went wrong in the
// lab itself while it ran.
func end(l *lab.Lab) error {
	var errs []error
	if err := l.Close(); err != nil {
		errs = append(errs, fmt.Errorf("remove the lab: %w", err))
	}
	if err := l.Err(); err != nil {
		errs = append(errs, fmt.Errorf("the lab itself: %w", err))
	}
	return errors.Join(append(errs, os.RemoveAll(l.Dir))...)
}

// Programs are the daemons and operators of a lab.
func Programs(l *lab.Lab) (programs []*proc.Process) {
	for _, n := range l.Nodes() {
		programs = append(programs, n.Process)
	}
	for _, o := range l.Operators() {
		programs = append(programs, o.Process)
	}
	return programs
}

// CheckLog fails the test for what must never stand in a program's log, and
// shows the log's end when the test has failed.
func CheckLog(t *testing.T, p *proc.Process) {
	t.Helper()
	if err := BadLog(p); err != nil {
		t.Error(err)
	}
	if t.Failed() && p.Starts() > 0 {
		t.Logf("end of the log of %s:\n%s", p, p.LogTail(60))
	}
}

// BadLog is an error when what must never stand in a program's log does: a
// data race that is not only libovsdb's own (ofOVSDBLibrary), or a panic.
func BadLog(p *proc.Process) error {
	data, err := os.ReadFile(p.LogFile())
	if os.IsNotExist(err) && p.Starts() == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the log of %s: %w", p, err)
	}
	var errs []error
	if others := slices.DeleteFunc(races(string(data)), ofOVSDBLibrary); len(others) > 0 {
		errs = append(errs, fmt.Errorf("%s logged %d data races, first:\n%s", p, len(others), others[0][:min(len(others[0]), 4000)]))
	}
	for _, bad := range []string{"panic:", "fatal error:"} {
		if i := strings.Index(string(data), bad); i >= 0 {
			errs = append(errs, fmt.Errorf("%s logged %q:\n%s", p, bad, data[i:min(len(data), i+4000)]))
		}
	}
	return errors.Join(errs...)
}

// Rest is the time within which everything must have settled.
const Rest = 3 * time.Minute

// Settle waits until the lab agrees with itself (oracle.Check).
func Settle(t *testing.T, l *lab.Lab) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Rest)
	defer cancel()
	if err := oracle.Wait(ctx, l); err != nil {
		t.Fatalf("after %v still not at rest: %v", Rest, err)
	}
}

// Eventually tries until is returns nil, and fails the test with its last
// error when that takes longer than within. It is for the edges of other
// processes and of the kernel, which tell nobody when they are done.
func Eventually(t *testing.T, within time.Duration, what string, is func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	if err := poll.Until(ctx, is); err != nil {
		t.Fatalf("%s: not within %v: %v", what, within, err)
	}
}

// OK ends the test at an error.
func OK(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Deadline is the test's context with a time limit.
func Deadline(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
