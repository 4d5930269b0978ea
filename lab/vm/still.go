package vm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// lockups are kernel arguments that make the guest's kernel panic, and so end, when a processor is stuck in the kernel or RCU
// makes no progress for 40 to 50 seconds. The defaults, half of that, are too short on a host that pauses or is busy:
// emulation is ten times slower, and the guest's clock advances while QEMU waits for a processor.
const lockups = "sysctl.kernel.watchdog_thresh=20 sysctl.kernel.softlockup_panic=1 " +
	"rcupdate.rcu_cpu_stall_timeout=45 sysctl.kernel.panic_on_rcu_stall=1"

// patience is the maximum time between heartbeats. The guest sends one every five seconds (guest/run.sh).
const patience = time.Minute

const consoleTitle = "The end of the virtual machine's console:\n"

// StoodStillError is the error of a machine that locked up: its kernel reported a lockup, or it stopped sending heartbeats.
type StoodStillError struct {
	Why     string
	Console string // last lines of the console
}

func (e *StoodStillError) Error() string {
	return fmt.Sprintf("the virtual machine locked up (%s)\n%s%s", e.Why, consoleTitle, e.Console)
}

// Again calls run, and calls it a second time if its machine locked up, which it reports with say. Output, Shared directories
// and a Kubernetes API keep the state of the first run, so run must start a new control plane if it uses one.
func Again(say func(string), run func() error) error {
	err := run()
	var still *StoodStillError
	if !errors.As(err, &still) {
		return err
	}
	say(fmt.Sprintf("the virtual machine locked up (%s); starting it once more\n%s%s", still.Why, consoleTitle, still.Console))
	return run()
}

// errSilent is the cause with which watch ends a machine.
var errSilent = errors.New("no heartbeat")

// watch ends a machine that sends no heartbeat: the first within boot, each further one within silence. It counts ticks
// instead of time: while the whole host is paused there are none, so that a guest that could not run either is not ended.
func watch(ctx context.Context, beats <-chan struct{}, boot, silence time.Duration, end context.CancelCauseFunc) {
	const tick = time.Second
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	limit, when := boot, "within %v of its start"
	for silent := time.Duration(0); silent < limit; {
		select {
		case <-ctx.Done():
			return
		case <-beats:
			silent, limit, when = 0, silence, "for %v"
		case <-ticker.C:
			silent += tick
		}
	}
	end(fmt.Errorf("%w "+when, errSilent, limit))
}

// panics are console messages of a kernel that ends itself because of a lockup (kernel/watchdog.c,
// kernel/rcu/tree_stall.h).
var panics = []string{"Kernel panic - not syncing: softlockup", "Kernel panic - not syncing: RCU Stall"}

// findings are the preceding console messages.
var findings = []string{"soft lockup - CPU", "self-detected stall on CPU", "detected stalls on CPUs", "kthread starved for"}

// stoodStill returns the error of a machine that ended with err, if that was because of a lockup, or nil.
func stoodStill(err error, console string) *StoodStillError {
	found := ""
	panicked := false
	for line := range strings.Lines(console) {
		line = strings.TrimSpace(line)
		for _, f := range findings {
			if strings.Contains(line, f) && found == "" {
				_, found, _ = strings.Cut(line, "] ")
			}
		}
		for _, p := range panics {
			panicked = panicked || strings.Contains(line, p)
		}
	}
	switch {
	case errors.Is(err, errSilent):
		found = strings.TrimSuffix(err.Error()+"; "+found, "; ")
	case !panicked:
		return nil
	case found == "":
		found = "its kernel panicked because of a lockup"
	}
	return &StoodStillError{found, console}
}
