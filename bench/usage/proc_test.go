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

// TestMemoryAndCPUOfThisProcess reads the usage of the test process.
func TestMemoryAndCPUOfThisProcess(t *testing.T) {
	memory, err := Memory(os.Getpid())
	if err != nil || memory < 1<<16 || memory > 1<<34 {
		t.Errorf("Memory is %d, %v", memory, err)
	}
	before, err := CPU(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	const work = 100 * time.Millisecond // several clock ticks
	for spent(t) < before+work {
	}
	after, err := CPU(os.Getpid())
	if err != nil || after <= before || after > before+10*time.Second {
		t.Errorf("CPU is %v after %v of work, %v before (%v)", after, work, before, err)
	}
}

// spent returns the CPU time of this process by its own clock.
func spent(t *testing.T) time.Duration {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts); err != nil {
		t.Fatal(err)
	}
	return time.Duration(ts.Nano())
}

// TestSettledAndPeak measures an idle process and one that does not exist.
func TestSettledAndPeak(t *testing.T) {
	idle := exec.CommandContext(t.Context(), "sleep", "600")
	if err := idle.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = idle.Process.Kill(); _ = idle.Wait() })
	if cpu, err := Settled(t.Context(), idle.Process.Pid); err != nil || cpu > 100*time.Millisecond {
		t.Errorf("CPU of an idle process: %v, %v", cpu, err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := Settled(ended, idle.Process.Pid); !errors.Is(err, context.Canceled) {
		t.Errorf("Settled with a canceled context: %v", err)
	}
	if _, err := Settled(t.Context(), -1); err == nil {
		t.Error("Settled of a process that does not exist: no error")
	}
	if peak := Peak(ended, idle.Process.Pid); peak <= 0 {
		t.Errorf("Peak is %d", peak)
	}
	if peak := Peak(ended, -1); peak != 0 {
		t.Errorf("Peak of a process that does not exist is %d, want 0", peak)
	}
}

func TestProcessThatIsNotThere(t *testing.T) {
	if _, err := Memory(-1); err == nil {
		t.Error("Memory of a process that does not exist: no error")
	}
	if _, err := CPU(-1); err == nil {
		t.Error("CPU of a process that does not exist: no error")
	}
}
