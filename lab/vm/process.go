package vm

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Ports of the guest's serial device, less one.
const (
	stdoutPort = iota
	stderrPort
	wordsPort // what the guest says of itself
	ports
)

// connect gives a process that is not started yet one end of a connection for each port,
// and returns the other ends.
func connect(cmd *exec.Cmd) (ours []*os.File, err error) {
	for range ports {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			closeAll(ours)
			closeAll(cmd.ExtraFiles)
			return nil, fmt.Errorf("make a connection to the virtual machine: %w", err)
		}
		ours = append(ours, os.NewFile(uintptr(fds[0]), "port"))
		cmd.ExtraFiles = append(cmd.ExtraFiles, os.NewFile(uintptr(fds[1]), "port"))
	}
	return ours, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// process is QEMU's.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has exited
	err  error         // how it ended; set before done is closed
}

func (p *process) kill() { _ = p.cmd.Process.Kill() } // one that is gone already is what is wanted

// wait returns when the process has exited, and how it ended.
func (p *process) wait() error {
	<-p.done
	if p.err == nil {
		return errors.New("exit status 0")
	}
	return p.err
}

// priority is QEMU's (nice(2)).
const priority = -10

// start starts QEMU, in a network namespace of its own if the machine has ways to and from the host. The thread that
// starts it stays, since the kernel ends the process with it (prctl(2), PR_SET_PDEATHSIG).
func (m Machine) start(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, done: make(chan struct{})}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true} // an interrupt of the terminal's is for the caller
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread has another priority from here on
		// Emulated, all takes ten times as long: who waits for a machine among others that are
		// busy would wait for very long. It is no error where this is not permitted.
		_ = unix.Setpriority(unix.PRIO_PROCESS, 0, priority)
		if m.network() {
			ways, err := m.enterNetwork()
			if err != nil {
				started <- err
				return
			}
			defer ways.close()
		}
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		started <- nil
		p.err = cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}
