package vm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// lockups are arguments by which the guest's kernel panics, and so ends, when a processor
// does nothing but the kernel's own work, or RCU makes no progress, for 40 to 50 seconds. The
// defaults, half of that, are too short for a host that pauses or is busy: emulated, all takes
// ten times as long, and the guest's clock goes on while QEMU waits for a processor.
const lockups = "sysctl.kernel.watchdog_thresh=20 sysctl.kernel.softlockup_panic=1 " +
	"rcupdate.rcu_cpu_stall_timeout=45 sysctl.kernel.panic_on_rcu_stall=1"

// patience is how long a guest may send no heartbeat. It sends one every five seconds (guest/run.sh).
const patience = time.Minute

const consoleTitle = "The end of the virtual machine's console:\n"

// StoodStillError is that of a machine that locked up: its kernel has found so, or it sent no heartbeat.
type StoodStillError struct {
	Why     string
	Console string // its last lines
}

func (e *StoodStillError) Error() string {
	return fmt.Sprintf("the virtual machine stood still (%s)\n%s%s", e.Why, consoleTitle, e.Console)
}

// Again calls run, and a second time if its machine stood still, which it reports by say. Output, Shared folders and a
// Kubernetes API keep what the first run wrote, so run starts a new control plane if it uses one.
func Again(say func(string), run func() error) error {
	err := run()
	var still *StoodStillError
	if !errors.As(err, &still) {
		return err
	}
	say(fmt.Sprintf("the virtual machine stood still (%s); starting it once more\n%s%s", still.Why, consoleTitle, still.Console))
	return run()
}

// errSilent is the cause by which watch ends a machine.
var errSilent = errors.New("no heartbeat")

// watch ends a machine that sends no heartbeat: the first within boot, each other within silence. It counts
// ticks in place of time: while the whole host stands still there are none, so that a guest which could not run
// either is not ended.
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

// panics are why the guest's kernel ends itself when it finds a lockup (kernel/watchdog.c,
// kernel/rcu/tree_stall.h).
var panics = []string{"Kernel panic - not syncing: softlockup", "Kernel panic - not syncing: RCU Stall"}

// findings are what it says before.
var findings = []string{"soft lockup - CPU", "self-detected stall on CPU", "detected stalls on CPUs", "kthread starved for"}

// stoodStill returns the error of a machine that was ended by err, if that was for a lockup, else nil.
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
		found = "its kernel panicked for a lockup"
	}
	return &StoodStillError{found, console}
}
