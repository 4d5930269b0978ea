package proc

import (
	"context"
	"io"
	"net"
	"os/exec"
	"runtime"
	"syscall"
)

// Run runs a program once and returns when it has ended. When ctx ends first, it is
// killed with its children, which would keep its output open. An exit
// status other than 0 is an *exec.ExitError.
func Run(ctx context.Context, c Command, stdin io.Reader, stdout, stderr io.Writer) error {
	argv := c.argv(nil)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env, cmd.Dir = append(Environment(), c.Env...), c.Dir
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: it enters namespaces, and the process dies with it
		if err := enter(c.Netns, c.Mounts); err != nil {
			done <- err
			return
		}
		done <- cmd.Run()
	}()
	return <-done
}

// Listens returns an error unless a program listens at a Unix socket.
func Listens(ctx context.Context, socket string) error {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	return c.Close()
}
