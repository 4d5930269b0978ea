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
	"github.com/berthnet/berth/lab/network/ovn"
	"github.com/berthnet/berth/lab/oracle"
	"github.com/berthnet/berth/lab/run/poll"
	"github.com/berthnet/berth/lab/run/proc"
)

// Raise starts a lab with the programs under test. It is removed when the test ends, after a check of
// the programs' logs for data races and panics. Raise sets Dir and, if empty, BinDir.
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

// Start is Raise outside a test: the caller checks the logs of Programs, and removes the lab as end
// does.
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

// end removes a lab and its directory. The error includes what went wrong in the lab itself.
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

// CheckLog fails the test for data races and panics in a program's log, and shows the log's end when
// the test has failed.
func CheckLog(t *testing.T, p *proc.Process) {
	t.Helper()
	if err := BadLog(p); err != nil {
		t.Error(err)
	}
	if t.Failed() && p.Starts() > 0 {
		t.Logf("end of the log of %s:\n%s", p, p.LogTail(60))
	}
}

// BadLog is an error if a program logged a data race that is not only libovsdb's own (ofOVSDBLibrary),
// or a panic.
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

// Rest is the time within which a lab must be at rest.
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

// Eventually tries until is returns nil, and fails the test with the last error after a time. It is
// for other processes and the kernel, which have no event for it.
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

// quickDaemon are settings of daemons in every mode under which nothing takes long. berth is alone in
// the CNI configuration, as CHECK of the reference plugins (1.1.1) fails where they have nothing to
// do.
var quickDaemon = []string{"--log-level=debug", "--cni-chain=", "--cooling-period=1s", "--netns-grace=1s", "--repair-interval=5s"}

// quickLeases are settings of operators that stay leaders on a busy machine.
var quickLeases = []string{"--log-level=debug", "--lease-duration=3600s", "--renew-deadline=3000s", "--retry-period=1s"}

// Settings of daemons and operators with ports.
var (
	quickPorts    = []string{"--port-wait=5s", "--warm-wait=5s"}
	quickPortDesk = []string{"--listing-interval=2s", "--settle-time=2s", "--orphan-age=3s", "--orphan-interval=1s", "--unplug-grace=3s"}
)

// quickReconciler are settings of the program that calls EC2: daemon or operator.
var quickReconciler = []string{"--shrink-delay=300ms", "--listing-interval=2s"}

// Quick is a lab of a mode with settings under which nothing takes long, whose pods have addresses of
// Families. Settings of o override them.
func Quick(m lab.Mode, o lab.Options) lab.Options {
	o.Mode = m
	o = withFamilies(o)
	daemon, operator := quickDaemon, quickLeases
	switch m {
	case lab.NodeMode:
		daemon = slices.Concat(daemon, quickReconciler, []string{"--warm-wait=1s"})
	case lab.OperatorMode: // nodes keep one address warm and leave the primary ENI to themselves
		daemon = slices.Concat(daemon, []string{"--pre-allocate=1", "--warm-wait=2s"})
		operator = slices.Concat(operator, quickReconciler, []string{"--settle-time=2s", "--orphan-age=3s", "--orphan-interval=1s"})
	case lab.PoolMode:
		daemon = slices.Concat(daemon, []string{"--block-release-delay=300ms"})
		operator = slices.Concat(operator, []string{"--orphan-interval=1s"})
	case lab.PortMode:
		daemon, operator = slices.Concat(daemon, quickPorts), slices.Concat(operator, quickPortDesk)
	}
	if o.VPCPorts {
		daemon, operator = slices.Concat(daemon, quickPorts), slices.Concat(operator, quickPortDesk)
	}
	o.DaemonArgs, o.OperatorArgs = slices.Concat(daemon, o.DaemonArgs), slices.Concat(operator, o.OperatorArgs)
	return o
}

// CanRun skips a test if the programs of a mode are not installed.
func CanRun(t *testing.T, m lab.Mode) {
	t.Helper()
	if m != lab.PortMode {
		return
	}
	if err := ovn.Installed(); err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
}

// RaiseQuick is Raise of Quick.
func RaiseQuick(t *testing.T, m lab.Mode, o lab.Options) *lab.Lab {
	t.Helper()
	return Raise(t, Quick(m, o))
}
