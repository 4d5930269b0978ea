// Package crashsource runs an address source in a child process that a test's failpoints kill, and restarts it like a
// kubelet restarts a daemon. Tests only.
package crashsource

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/berthnet/berth/internal/failpoint"
)

// childVar is the environment variable that marks a test's program as a child; its value is the child's task, as
// JSON.
const childVar = "BERTH_TEST_CHILD"

// Main is a test's main function: run runs in the test's own process; child runs in a process made by Command, with
// the value passed to Command. It returns the exit code.
func Main[T any](run func() int, child func(T) error) int {
	text, is := os.LookupEnv(childVar)
	if !is {
		return run()
	}
	var what T
	err := json.Unmarshal([]byte(text), &what)
	if err == nil {
		err = child(what)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// Command returns the test's own program as a child that dies with its parent and writes its log to log. Variables in
// env are NAME=VALUE.
func Command(what any, log io.Writer, env ...string) (*exec.Cmd, error) {
	text, err := json.Marshal(what)
	if err != nil {
		return nil, fmt.Errorf("encode a child's task: %w", err)
	}
	cmd := exec.Command(os.Args[0]) //nolint:gosec // G702: the test starts itself
	cmd.Env = append(append(os.Environ(), childVar+"="+string(text)), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = log
	return cmd, nil
}

// Process is a daemon's address source in a child that serves Leases. Only one goroutine may use it after Launch.
type Process struct {
	// Deaths counts how often failpoints killed the child.
	Deaths int

	t    testing.TB
	what any
	log  io.Writer
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
}

// New returns a child that is not yet started, with the arguments of Command.
func New(t testing.TB, what any, log io.Writer) *Process {
	return &Process{t: t, what: what, log: log}
}

// Launch starts the child with failpoints (see package failpoint). It ends with the test at the latest.
func (p *Process) Launch(failpoints string) {
	p.t.Helper()
	p.launch(failpoints)
	p.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	})
}

func (p *Process) launch(failpoints string) {
	p.t.Helper()
	var err error
	if p.cmd, err = Command(p.what, p.log, failpoint.EnvVar+"="+failpoints); err != nil {
		p.t.Fatal(err)
	}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		p.t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	p.out = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
}

// Do sends a request to the child and reports whether it succeeded. A child that has died, or dies now, is restarted
// without failpoints, and the request is repeated, like a runtime would.
func (p *Process) Do(format string, args ...any) (done bool) {
	p.t.Helper()
	for range 3 {
		if _, err := fmt.Fprintf(p.in, format+"\n", args...); err == nil {
			if line, err := p.out.ReadString('\n'); err == nil {
				return line == answerDone+"\n"
			}
		}
		p.reborn()
	}
	p.t.Fatal("the daemon keeps dying")
	return false
}

// Live restarts a child that has died, without failpoints.
func (p *Process) Live() {
	p.t.Helper()
	if dead(p.cmd.Process.Pid) {
		p.reborn()
	}
}

// reborn records a death and restarts the child.
func (p *Process) reborn() {
	p.t.Helper()
	err := p.cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		p.t.Fatalf("the daemon ended unexpectedly: %v", err)
	}
	p.Deaths++
	p.launch("")
}

// dead reports whether a child has ended and waits to be reaped.
func dead(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	rest := string(data[strings.LastIndexByte(string(data), ')')+1:])
	return strings.HasPrefix(rest, " Z")
}
