package kube

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"

	"github.com/berthnet/berth/internal/lab/network/ns"
)

// process is a program that runs until it is killed, or its starter ends.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it is gone
	err  error         // how it ended; read it after done
}

// startProcess starts a program in a directory and, unless netns is empty, a
// network namespace. Its output is added to the file log.
func startProcess(program string, args []string, dir, log, netns string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start %s: open its log: %w", program, err)
	}
	defer out.Close()
	p := &process{cmd: exec.Command(program, args...), done: make(chan struct{})}
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, out, out
	// A group of its own, so that an interrupt at the terminal is the starter's
	// to handle.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error, 1)
	go p.run(netns, started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	return p, nil
}

// run keeps the thread that starts the process until the process ends: the
// kernel takes the thread's end for the starter's (prctl(2), PR_SET_PDEATHSIG).
func (p *process) run(netns string, started chan<- error) {
	runtime.LockOSThread()
	if netns == "" {
		defer runtime.UnlockOSThread() // else the thread is spoiled and ends with this goroutine
	} else if err := ns.Enter(netns); err != nil {
		started <- err
		return
	}
	if err := p.cmd.Start(); err != nil {
		started <- err
		return
	}
	started <- nil
	p.err = p.cmd.Wait()
	close(p.done)
}

func (p *process) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// kill ends the process at once and returns when it is gone. A graceful end
// takes an API server more than a minute.
func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.done
	return nil
}

// tail is the end of a log.
func tail(file string) string {
	const lines = 20
	data, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
