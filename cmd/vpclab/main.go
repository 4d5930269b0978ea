// Command vpclab is a VPC on one machine: the EC2 API, the instance metadata
// service, and the nodes and networks behind them.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

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
