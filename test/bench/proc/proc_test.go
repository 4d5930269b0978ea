package proc

import (
	"os"
	"testing"
	"time"
)

// TestOwnProcess asks about a process that surely is there: this one.
func TestOwnProcess(t *testing.T) {
	memory, err := Memory(os.Getpid())
	if err != nil || memory < 1<<16 || memory > 1<<34 {
		t.Errorf("Memory is %d, %v", memory, err)
	}
	before, err := CPU(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for start := time.Now(); time.Since(start) < 100*time.Millisecond; { // works for some ticks
	}
	after, err := CPU(os.Getpid())
	if err != nil || after <= before || after > before+10*time.Second {
		t.Errorf("CPU is %v after %v of work, %v before (%v)", after, 100*time.Millisecond, before, err)
	}
}

func TestNoProcess(t *testing.T) {
	if _, err := Memory(-1); err == nil {
		t.Error("Memory of no process is known")
	}
	if _, err := CPU(-1); err == nil {
		t.Error("CPU time of no process is known")
	}
}
