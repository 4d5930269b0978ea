// Package crashsource runs an address source in a process of its own, which a test's
// failpoints kill, and starts it again as a kubelet starts a daemon. Tests only.
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

// childVar is the variable by which a test's own program knows that it is a
// child; its value is what the child is to do, as JSON.
const childVar = "BERTH_TEST_CHILD"

// Main is a test's main function: run in the test's own process; child, with
// what Command was given, in one that Command made. It returns the exit code.
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

// Command is the test's own program as a child that dies with its parent and
// writes its log to log. Variables of env are NAME=VALUE.
func Command(what any, log io.Writer, env ...string) (*exec.Cmd, error) {
	text, err := json.Marshal(what)
	if err != nil {
		return nil, fmt.Errorf("encode what a child is to do: %w", err)
	}
	cmd := exec.Command(os.Args[0]) //nolint:gosec // G702: the test starts itself
	cmd.Env = append(append(os.Environ(), childVar+"="+string(text)), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = log
	return cmd, nil
}

// Process is a daemon's address source in a child that serves Leases. One
// goroutine uses it, from Launch on.
type Process struct {
	// Deaths counts how often the child was found killed by its failpoints.
	Deaths int

	t    testing.TB
	what any
	log  io.Writer
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
}

// New is a child that is to be, with what Command takes.
func New(t testing.TB, what any, log io.Writer) *Process {
	return &Process{t: t, what: what, log: log}
}

// Launch starts the child with failpoints (see package failpoint). It lives until
// the test ends at the latest.
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

// Do asks the child for something and reports whether it was done. A child that
// has died, or does so now, is started again, without failpoints, and asked
// anew, as a runtime would.
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
	p.t.Fatal("the daemon does not live")
	return false
}

// Live starts a child that has died again, without failpoints.
func (p *Process) Live() {
	p.t.Helper()
	if dead(p.cmd.Process.Pid) {
		p.reborn()
	}
}

// reborn takes note of a death.
func (p *Process) reborn() {
	p.t.Helper()
	err := p.cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		p.t.Fatalf("the daemon ended by itself: %v", err)
	}
	p.Deaths++
	p.launch("")
}

// dead reports whether a child has ended and waits to be noticed.
func dead(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	rest := string(data[strings.LastIndexByte(string(data), ')')+1:])
	return strings.HasPrefix(rest, " Z")
}
