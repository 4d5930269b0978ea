package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthnet/berth/lab/run/poll"
)

// TestProgramsStartInTheirCgroups uses directories with regular files, which keep the number that is written to them.
func TestProgramsStartInTheirCgroups(t *testing.T) {
	t.Parallel()
	groups := []string{t.TempDir(), t.TempDir()}
	var out bytes.Buffer
	c := Command{Path: "/bin/sh", Args: []string{"-c", "echo $$ $0 $1", "a b", "--"}, Cgroups: groups}
	if err := Run(t.Context(), c, nil, &out, nil); err != nil {
		t.Fatal(err)
	}
	pid, rest, _ := strings.Cut(strings.TrimSpace(out.String()), " ")
	if rest != "a b --" {
		t.Errorf("arguments of the program = %q, want a b --", rest)
	}
	for _, dir := range groups {
		joined, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil || strings.TrimSpace(string(joined)) != pid {
			t.Errorf("cgroup.procs of process %s = %q, %v", pid, joined, err)
		}
	}
}

func TestProgramDoesNotRunWithoutItsCgroup(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	c := Command{Path: "/bin/echo", Args: []string{"ran"}, Cgroups: []string{filepath.Join(t.TempDir(), "none")}}
	err := Run(t.Context(), c, nil, &out, nil)
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || out.Len() > 0 {
		t.Errorf("Run() = %v with output %q, want a failure without output", err, &out)
	}
}

// Children of a program share its output, which Run reads to the end.
func TestChildrenEndWithProgram(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, Command{Path: "/bin/sh", Args: []string{"-c", "sleep 20 & echo started; wait"}}, nil, w, nil)
	}()
	if _, err := io.ReadFull(r, make([]byte, len("started\n"))); err != nil {
		t.Fatal(err)
	}
	cancel()
	select {
	case err := <-done:
		if err == nil {
			t.Error("Run() = nil, want a failure")
		}
	case <-time.After(15 * time.Second):
		t.Error("Run() still waits for the program's children")
	}
}

// The error of a Go program that does not end says where it is stuck.
func TestStopShowsWhereAProgramIsStuck(t *testing.T) {
	const variable = "PROC_TEST_STUCK"
	if os.Getenv(variable) != "" { // this is the program
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("ready")
		<-time.After(time.Hour) // a select without cases would be a deadlock, which ends it
	}
	t.Parallel()
	p := New("a program", filepath.Join(t.TempDir(), "log"), func() Command {
		return Command{Path: os.Args[0], Args: []string{"-test.run=^" + t.Name() + "$"}, Env: []string{variable + "=1"}}
	})
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := p.Wait(ctx, func() error {
		if log := p.LogTail(1); log != "ready" {
			return fmt.Errorf("it says %q", log)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	err := p.Stop(10 * time.Millisecond)
	if text := fmt.Sprint(err); !strings.Contains(text, "a program did not exit within 10ms of terminated\nSIGQUIT") || !strings.Contains(text, t.Name()+"(") || strings.Contains(text, "ready") {
		t.Errorf("Stop() = %v, want the stacks of goroutines", err)
	}
}

// A process ends with the program that started it, even if that is killed.
func TestProcessEndsWithItsStarter(t *testing.T) {
	const variable = "PROC_TEST_DIR"
	if dir := os.Getenv(variable); dir != "" { // this is the starter
		p := New("a process", filepath.Join(dir, "log"), func() Command { return Command{Path: "/bin/sleep", Args: []string{"600"}} })
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		fmt.Println(p.PID())
		select {} // until killed
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestProcessEndsWithItsStarter$")
	cmd.Env = append(os.Environ(), variable+"="+t.TempDir())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	_, err = fmt.Fscan(out, &pid)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := poll.Until(ctx, func() error {
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err == nil && !bytes.Contains(state, []byte(") Z ")) { // a zombie: it may have no parent that reaps it
			return fmt.Errorf("process %d outlives its starter", pid)
		}
		return nil
	}); err != nil {
		t.Error(err, syscall.Kill(pid, syscall.SIGKILL))
	}
}
