// Command vpclab is a VPC on one machine: the EC2 API, the instance metadata service, and the nodes and networks behind
// them.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthnet/berth/lab/control"
	"github.com/berthnet/berth/lab/vm"
)

// commands are the subcommands, each in a file of its own.
var commands = []func() *cobra.Command{
	newUp, newStatus, newPod, newExec, newKill, newStart, newFault, newCalls, newDown, newDemo, newVM, newServe, newLabProcess,
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := newRoot().ExecuteContext(ctx)
	var exit *vm.ExitError // of a command whose exit code is vpclab's
	if errors.As(err, &exit) {
		stop()
		os.Exit(exit.Code)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "vpclab:", err)
		stop()
		os.Exit(1)
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "vpclab",
		Short:         "A VPC on one machine, for development, demonstration and tests",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	for _, c := range commands {
		root.AddCommand(c())
	}
	return root
}

func contextFor(cmd *cobra.Command, timeout time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(cmd.Context(), timeout)
}

func absDir(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("--dir: %w", err)
	}
	return abs, nil
}

// absolute makes paths independent of the current directory.
func (f *labFlags) absolute() error {
	paths := []*string{&f.dir, &f.specFile, &f.binDir, &f.containerd, &f.helm, &f.release}
	for i := range f.images {
		paths = append(paths, &f.images[i])
	}
	for _, p := range paths {
		if *p == "" {
			continue
		}
		var err error
		if *p, err = filepath.Abs(*p); err != nil {
			return err
		}
	}
	return nil
}

// labCommand adds the flag --dir to a command, and runs it with a client of the lab there.
func labCommand(c *cobra.Command, run func(cmd *cobra.Command, lab *control.Client, args []string) error) *cobra.Command {
	var dir string
	dirFlag(c, &dir)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		dir, err := absDir(dir)
		if err != nil {
			return err
		}
		return run(cmd, control.Dial(dir), args)
	}
	return c
}
