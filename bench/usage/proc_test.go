package usage

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMemoryAndCPUOfThisProcess asks about a process that surely is there: this one.
func TestMemoryAndCPUOfThisProcess(t *testing.T) {
	memory, err := Memory(os.Getpid())
	if err != nil || memory < 1<<16 || memory > 1<<34 {
		t.Errorf("Memory is %d, %v", memory, err)
	}
	before, err := CPU(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	const work = 100 * time.Millisecond // some ticks, however busy the machine is
	for spent(t) < before+work {
	}
	after, err := CPU(os.Getpid())
	if err != nil || after <= before || after > before+10*time.Second {
		t.Errorf("CPU is %v after %v of work, %v before (%v)", after, work, before, err)
	}
}

// spent is the CPU time of this process by its own clock.
func spent(t *testing.T) time.Duration {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts); err != nil {
		t.Fatal(err)
	}
	return time.Duration(ts.Nano())
}

// TestSettledAndPeak watch a process that does nothing, and one that is gone.
func TestSettledAndPeak(t *testing.T) {
	idle := exec.CommandContext(t.Context(), "sleep", "600")
	if err := idle.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = idle.Process.Kill(); _ = idle.Wait() })
	if cpu, err := Settled(t.Context(), idle.Process.Pid); err != nil || cpu > 100*time.Millisecond {
		t.Errorf("CPU of a process that does nothing: %v, %v", cpu, err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := Settled(ended, idle.Process.Pid); !errors.Is(err, context.Canceled) {
		t.Errorf("without time to wait: %v", err)
	}
	if _, err := Settled(t.Context(), -1); err == nil {
		t.Error("a process that is not there settles")
	}
	if peak := Peak(ended, idle.Process.Pid); peak <= 0 {
		t.Errorf("Peak is %d", peak)
	}
	if peak := Peak(ended, -1); peak != 0 {
		t.Errorf("Peak of no process is %d", peak)
	}
}

func TestProcessThatIsNotThere(t *testing.T) {
	if _, err := Memory(-1); err == nil {
		t.Error("Memory of no process is known")
	}
	if _, err := CPU(-1); err == nil {
		t.Error("CPU time of no process is known")
	}
}
