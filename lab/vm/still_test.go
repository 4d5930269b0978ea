package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthnet/berth/test/harness"
)

// TestWatch ends only guests without heartbeats.
func TestWatch(t *testing.T) {
	for name, c := range map[string]struct {
		first, beats int           // first heartbeat in seconds; further ones follow every 5 s
		want         time.Duration // time at which it is ended
		why          string
	}{
		"boots":            {first: 119, beats: 1, want: 119*time.Second + patience, why: "no heartbeat for 1m0s"},
		"does not boot":    {first: 0, beats: 0, want: bootTime, why: "no heartbeat within 2m0s of its start"},
		"runs for an hour": {first: 5, beats: 720, want: time.Hour + patience, why: "no heartbeat for 1m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				guest, says := io.Pipe()
				beats := make(chan struct{}, 1)
				go watch(ctx, beats, bootTime, patience, cancel)
				go hear(guest, beats, func() {})
				go func() {
					time.Sleep(time.Duration(c.first) * time.Second) //nolint:forbidigo // virtual time
					for range c.beats {
						fmt.Fprintln(says, "beat")
						time.Sleep(5 * time.Second) //nolint:forbidigo // virtual time
					}
				}()
				began := time.Now()
				<-ctx.Done()
				if after := time.Since(began); after < c.want-5*time.Second || after > c.want+time.Second || context.Cause(ctx).Error() != c.why {
					t.Errorf("watch ended the machine after %v: %v; want after %v: %s", after, context.Cause(ctx), c.want, c.why)
				}
				_ = says.Close()
			})
		})
	}
}

// TestStoodStill distinguishes lockups from other ends by the console.
func TestStoodStill(t *testing.T) {
	const (
		soft = "[   67.1] watchdog: BUG: soft lockup - CPU#0 stuck for 45s! [kworker/0:1:22]\n"
		rcu  = "[   99.3] rcu: INFO: rcu_preempt self-detected stall on CPU\n"
	)
	ended := errors.New("the virtual machine ended before its command did (exit status 0)")
	for _, c := range []struct {
		err           error
		console, want string // empty: no lockup
	}{
		{ended, soft + "[   67.2] Kernel panic - not syncing: softlockup: hung tasks\n", "watchdog: BUG: soft lockup - CPU#0 stuck for 45s! [kworker/0:1:22]"},
		{ended, rcu + "[   99.4] Kernel panic - not syncing: RCU Stall\n", "rcu: INFO: rcu_preempt self-detected stall on CPU"},
		{ended, rcu + "[  199.4] Kernel panic - not syncing: sysrq triggered crash\n", ""},
		{ended, "", ""},
		{fmt.Errorf("%w for 1m0s", errSilent), "", "no heartbeat for 1m0s"},
		{fmt.Errorf("%w for 1m0s", errSilent), soft, "no heartbeat for 1m0s; watchdog: BUG: soft lockup - CPU#0 stuck for 45s! [kworker/0:1:22]"},
	} {
		got := stoodStill(c.err, c.console)
		switch {
		case (got != nil) != (c.want != ""):
			t.Errorf("stoodStill(%v) with console %q = %v, want %q", c.err, c.console, got, c.want)
		case got != nil && (got.Why != c.want || got.Console != c.console):
			t.Errorf("stoodStill(%v) with console %q = %+v, want %q", c.err, c.console, got, c.want)
		}
	}
}

// TestAgain restarts only machines that stood still, and only once.
func TestAgain(t *testing.T) {
	still, other := &StoodStillError{"why", "last words"}, errors.New("other")
	for _, c := range []struct {
		ends []error
		want error
		said string
	}{
		{[]error{nil}, nil, ""},
		{[]error{other}, other, ""},
		{[]error{fmt.Errorf("run it: %w", still), nil}, nil, "the virtual machine locked up (why); starting it once more\nThe end of the virtual machine's console:\nlast words"},
		{[]error{still, &ExitError{3}}, &ExitError{3}, "the virtual machine locked up (why); starting it once more\nThe end of the virtual machine's console:\nlast words"},
		{[]error{still, still}, still, "the virtual machine locked up (why); starting it once more\nThe end of the virtual machine's console:\nlast words"},
	} {
		runs, said := 0, ""
		err := Again(func(s string) { said += s }, func() error {
			runs++
			return c.ends[runs-1]
		})
		if runs != len(c.ends) || fmt.Sprint(err) != fmt.Sprint(c.want) || said != c.said {
			t.Errorf("Again() with %v: %d runs, error %v, messages %q; want %v, %q", c.ends, runs, err, said, c.want, c.said)
		}
	}
}

// TestMachineThatLocksUpIsRestarted runs a machine whose processes make no progress and, after its restart, one whose
// kernel makes none.
func TestMachineThatLocksUpIsRestarted(t *testing.T) {
	t.Parallel()
	harness.Rotate(t, 4, 9)
	m := machine(t)
	m.silence = 10 * time.Second
	said, out := "", strings.Builder{}
	scripts := []string{
		"for p in /proc/[0-9]*; do case $(cat $p/comm) in sh) kill -STOP ${p#/proc/} ;; esac; done",
		// This process starves the kernel's own threads, like a stuck processor. It repeats in case RCU was idle.
		`for name in watchdog_thresh softlockup_panic panic_on_rcu_stall; do cat /proc/sys/kernel/$name; done
		cd /sys/module/rcupdate/parameters && cat rcu_cpu_stall_timeout && echo 4 >rcu_cpu_stall_timeout
		sysctl -qw kernel.sched_rt_runtime_us=-1
		while :; do true & wait; done &
		while :; do chrt -f 99 timeout 8 chrt -f 98 sh -c 'while :; do :; done'; sleep 0.5; done`,
	}
	err := Again(func(s string) { said += s }, func() error {
		script := scripts[0]
		if scripts = scripts[1:]; len(scripts) == 0 {
			m.silence = patience
		}
		return m.Run(t.Context(), shell(script, &out, nil))
	})
	if want := "the virtual machine locked up (no heartbeat for 10s); starting it once more\n"; !strings.HasPrefix(said, want) {
		t.Errorf("messages = %q, want %q", said, want)
	}
	var still *StoodStillError
	if !errors.As(err, &still) || !strings.Contains(still.Why, "rcu") || !strings.Contains(still.Console, "RCU Stall") {
		t.Errorf("second run = %v, want an RCU stall", err)
	}
	if got, want := strings.Join(strings.Fields(out.String()), " "), "20 1 1 45"; got != want {
		t.Errorf("kernel settings = %q, want %q", got, want)
	}
}
