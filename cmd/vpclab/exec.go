package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/berthnet/berth/internal/kernel/ns"
	"github.com/berthnet/berth/lab/control"
	"github.com/berthnet/berth/lab/run/host"
)

func newExec() *cobra.Command {
	return labCommand(&cobra.Command{
		Use:   "exec NODE[/POD] -- COMMAND [ARG...]",
		Short: "Run a command in the network of a node or pod",
		Long: `Run a command in the network of a node or pod; internet, onprem and vpc stand for
the host on the internet, the one on premises and the VPC's router. Files and
processes are this machine's, but for nodes with kubelets, which have files of their
own. Programs beside vpclab are found without a path,
and BERTH_SOCKET leads them to the node's daemon.`,
		Example: `  vpclab exec node-1 -- berthctl ip-manager
  vpclab exec node-1/web -- ping -c 1 10.0.4.20
  vpclab exec internet -- tcpdump -ni eth0`,
		Args: cobra.MinimumNArgs(1),
	}, func(cmd *cobra.Command, lab *control.Client, args []string) error {
		if cmd.ArgsLenAtDash() != 1 || len(args) < 2 {
			return errors.New("want NODE -- COMMAND, such as vpclab exec node-1 -- ip route")
		}
		t, err := lab.Target(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return run(t, args[1:])
	})
}

// run becomes the command, and returns only if that fails.
func run(t control.Target, argv []string) error {
	if self, err := os.Executable(); err == nil {
		_ = os.Setenv("PATH", filepath.Dir(self)+":"+os.Getenv("PATH"))
	}
	runtime.LockOSThread() // the thread that enters the namespaces is the one that becomes the command
	if err := ns.Enter(t.Netns); err != nil {
		return err
	}
	if t.Mounts != "" { // programs are the machine's
		if err := ns.EnterMounts(t.Mounts); err != nil {
			return err
		}
		_ = os.Setenv("PATH", host.Path)
	}
	bin, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	if err := syscall.Exec(bin, argv, append(os.Environ(), t.Env...)); err != nil {
		return fmt.Errorf("run %s: %w", bin, err)
	}
	return nil
}

func newKill() *cobra.Command {
	c := &cobra.Command{
		Use:   "kill NODE | OPERATOR | kube-apiserver",
		Short: "Kill a node's berthd, an operator or the API server with SIGKILL",
		Long: `Kill a program with SIGKILL: a node's berthd by the node's name, an operator
(operator-1) or the API server (kube-apiserver) by its own. Pods that run keep
running; start brings the program back.`,
		Args: cobra.ExactArgs(1),
	}
	restart := c.Flags().Bool("restart", false, "start it again at once")
	return labCommand(c, func(cmd *cobra.Command, lab *control.Client, args []string) error {
		what, err := lab.Kill(cmd.Context(), args[0], *restart)
		if err != nil {
			return err
		}
		how := "killed; start it again with vpclab start " + args[0]
		if *restart {
			how = "killed and started again"
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s was %s\n", what, how)
		return nil
	})
}

func newStart() *cobra.Command {
	return labCommand(&cobra.Command{
		Use:   "start NODE | OPERATOR | kube-apiserver",
		Short: "Start what was killed, and wait until it is ready",
		Args:  cobra.ExactArgs(1),
	}, func(cmd *cobra.Command, lab *control.Client, args []string) error {
		what, err := lab.Start(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s is ready\n", what)
		return nil
	})
}
