package failpoint

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
)

var _ = Register("test.b", "test.a")

func TestNamesAreSorted(t *testing.T) {
	if got := Names(); !slices.Equal(got, []string{"test.a", "test.b"}) {
		t.Errorf("Names() = %v", got)
	}
}

func TestErrorAtNthHitOnly(t *testing.T) {
	restore, err := Set("test.a=error@2, test.b=error")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(restore)
	for i, want := range []bool{false, true, false} {
		if got := errors.Is(Hit("test.a"), ErrHit); got != want {
			t.Errorf("hit %d of test.a: error = %v, want %v", i+1, got, want)
		}
		if !errors.Is(Hit("test.b"), ErrHit) {
			t.Errorf("hit %d of test.b succeeded, want an error", i+1)
		}
	}
	if err := Hit("test.c"); err != nil {
		t.Errorf("Hit() of a failpoint that is not armed: %v", err)
	}
	restore()
	if err := Hit("test.b"); err != nil {
		t.Errorf("Hit() after restore: %v", err)
	}
}

func TestMalformedSpecs(t *testing.T) {
	for _, spec := range []string{"x", "=kill", "x=stop", "x=halt", "x=kill@0", "x=error@many", "x=kill,,"} {
		if _, err := Set(spec); err == nil {
			t.Errorf("Set(%q) succeeded, want an error", spec)
		}
	}
}

func TestHaltAtNthHitOnly(t *testing.T) {
	var halted []string
	restore, err := SetHalt("test.a=halt@2,test.b=halt", func(name string) { halted = append(halted, name) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(restore)
	for i, want := range []bool{false, true, false} {
		if got := errors.Is(Hit("test.a"), ErrHit); got != want {
			t.Errorf("hit %d of test.a: error = %v, want %v", i+1, got, want)
		}
	}
	for i, want := range []bool{true, false} {
		if got := errors.Is(Hit("test.b"), ErrHit); got != want {
			t.Errorf("hit %d of test.b: error = %v, want %v", i+1, got, want)
		}
	}
	if want := []string{"test.a", "test.b"}; !slices.Equal(halted, want) {
		t.Errorf("halted failpoints = %v, want %v", halted, want)
	}
}

func TestKillEndsProcess(t *testing.T) {
	if os.Getenv("FAILPOINT_CHILD") != "" {
		if err := Err(); err != nil {
			t.Fatal(err)
		}
		_ = Hit("test.a")
		_ = Hit("test.a")
		t.Fatal("the second hit did not kill the process")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^TestKillEndsProcess$")
	cmd.Env = append(os.Environ(), "FAILPOINT_CHILD=1", EnvVar+"=test.a=kill@2")
	err = cmd.Run()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		t.Fatalf("child ended with %v, want it killed", err)
	}
	if ws := exit.Sys().(syscall.WaitStatus); !ws.Signaled() || ws.Signal() != syscall.SIGKILL {
		t.Errorf("child ended with %v, want SIGKILL", exit)
	}
}

func BenchmarkHitOff(b *testing.B) {
	for b.Loop() {
		if Hit("test.a") != nil {
			b.Fatal("armed")
		}
	}
}
