package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthnet/berth/lab/run/poll"
)

// TestProgramsAreBornInTheirCgroups has folders in place of cgroups: the kernel's file
// takes a number, a plain one keeps it.
func TestProgramsAreBornInTheirCgroups(t *testing.T) {
	t.Parallel()
	groups := []string{t.TempDir(), t.TempDir()}
	var out bytes.Buffer
	c := Command{Path: "/bin/sh", Args: []string{"-c", "echo $$ $0 $1", "a b", "--"}, Cgroups: groups}
	if err := Run(t.Context(), c, nil, &out, nil); err != nil {
		t.Fatal(err)
	}
	pid, rest, _ := strings.Cut(strings.TrimSpace(out.String()), " ")
	if rest != "a b --" {
		t.Errorf("the program was given %q, want its arguments as they are", rest)
	}
	for _, dir := range groups {
		joined, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil || strings.TrimSpace(string(joined)) != pid {
			t.Errorf("process %s joined as %q, %v", pid, joined, err)
		}
	}
}

func TestAProgramThatCannotJoinDoesNotRun(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	c := Command{Path: "/bin/echo", Args: []string{"ran"}, Cgroups: []string{filepath.Join(t.TempDir(), "none")}}
	err := Run(t.Context(), c, nil, &out, nil)
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || out.Len() > 0 {
		t.Errorf("got %v and %q, want a failure and nothing run", err, &out)
	}
}

// What a program started has its output too, which Run reads to its end.
func TestWhatAProgramStartedEndsWithIt(t *testing.T) {
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
			t.Error("ended well, want a failure")
		}
	case <-time.After(15 * time.Second):
		t.Error("it waits for what the program started")
	}
}

// A process ends with the program that has started it, however that ends.
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
		if err == nil && !bytes.Contains(state, []byte(") Z ")) { // nobody may reap it
			return fmt.Errorf("process %d outlives its starter", pid)
		}
		return nil
	}); err != nil {
		t.Error(err, syscall.Kill(pid, syscall.SIGKILL))
	}
}
