// Command berthctl shows a node's addresses and helps to plan them. Under the name kubectl-berth, under which kubectl
// finds it as a plugin, it shows the whole cluster. kubectl calls kubectl_complete-berth for completions (Kubernetes
// documentation, "Extend kubectl with plugins").
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/berthnet/berth/internal/ctl"
	"github.com/berthnet/berth/internal/ctl/kubectl"
	"github.com/berthnet/berth/internal/planner"
)

// called returns the command for the name under which the program was called, the name to use in errors, and the
// arguments.
func called(args []string) (cmd *cobra.Command, name string, rest []string) {
	switch strings.TrimSuffix(filepath.Base(args[0]), ".exe") {
	case "kubectl-berth":
		return kubectl.New(kubectl.Options{Node: ctl.NodeParts}), "kubectl berth", args[1:]
	case "kubectl_complete-berth":
		return kubectl.New(kubectl.Options{Node: ctl.NodeParts}), "kubectl berth", append([]string{cobra.ShellCompRequestCmd}, args[1:]...)
	default:
		cmd := ctl.New()
		cmd.AddCommand(reference())
		return cmd, "berthctl", args[1:]
	}
}

//go:generate sh -c "go run . kubectl-reference > ../../docs/reference/kubectl-berth.md"

// reference prints the reference page of `kubectl berth`.
func reference() *cobra.Command {
	return &cobra.Command{
		Use: "kubectl-reference", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return kubectl.WriteReference(cmd.OutOrStdout()) },
	}
}

func main() {
	planner.Child()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the program immediately
	cmd, name, args := called(os.Args)
	cmd.SetArgs(args)
	code, tell := kubectl.ExitCode(cmd.ExecuteContext(ctx))
	if tell != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, tell)
	}
	os.Exit(code)
}
