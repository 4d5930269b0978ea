package planner

import (
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// runChild runs a program that the kernel kills when this one ends.
func runChild(cmd *exec.Cmd) error {
	runtime.LockOSThread() // the signal comes when the thread ends that started the child
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	return cmd.Run()
}
