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

// Ports of the guest's serial device, minus one.
const (
	stdoutPort = iota
	stderrPort
	wordsPort // status messages of the guest
	ports
)

// connect gives a process that has not started yet one end of a connection for each port, and returns the other ends.
func connect(cmd *exec.Cmd) (ours []*os.File, err error) {
	for range ports {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			closeAll(ours)
			closeAll(cmd.ExtraFiles)
			return nil, fmt.Errorf("create a connection to the virtual machine: %w", err)
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

// process is QEMU's process.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has exited
	err  error         // its error; set before done is closed
}

func (p *process) kill() { _ = p.cmd.Process.Kill() } // the process may have exited

// wait waits until the process has exited, and returns its error.
func (p *process) wait() error {
	<-p.done
	if p.err == nil {
		return errors.New("exit status 0")
	}
	return p.err
}

// priority is QEMU's nice value (nice(2)).
const priority = -10

// start starts QEMU, in a separate network namespace if the machine has ways to and from the host. The thread that starts it
// stays, because the kernel kills the process with it (prctl(2), PR_SET_PDEATHSIG).
func (m Machine) start(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, done: make(chan struct{})}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true} // an interrupt from the terminal is for the caller
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // permanently: the thread has another priority from now on
		// Emulation is ten times slower, so a machine with normal priority would take very long on a busy host. Without
		// permission, the priority stays unchanged.
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
