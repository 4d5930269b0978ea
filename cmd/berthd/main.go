// Command berthd is the node daemon: it gives the node's pods addresses of the
// VPC, and owns their attachments and the kernel state behind them.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/daemon"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/version"
)

//go:generate sh -c "go run . config-reference > ../../docs/reference/configuration.md"
//go:generate sh -c "go run . metrics-reference > ../../docs/reference/metrics.md"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	if err := newCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "berthd:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "berthd",
		Short:         "Give this node's pods addresses of the VPC",
		Long:          "berthd is Berth's node daemon. Every flag has an environment variable, named in parentheses; the flag wins.",
		Version:       version.String(),
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	loader := config.NewLoader(cmd.Flags())
	cmd.Flags().SortFlags = false
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		_, more := loader.Load(os.Environ())
		return errors.Join(err, more)
	})
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := loader.Load(os.Environ())
		if err := errors.Join(err, failpoint.Err()); err != nil {
			return err
		}
		return run(cmd.Context(), cfg, newLogger(os.Stderr, cfg))
	}
	cmd.AddCommand(
		reference("config-reference", config.WriteReference),
		reference("metrics-reference", daemon.WriteMetricsReference),
	)
	cmd.CompletionOptions.DisableDefaultCmd = true
	return cmd
}

// reference is a hidden command that prints a page of the documentation.
func reference(name string, write func(io.Writer) error) *cobra.Command {
	return &cobra.Command{
		Use: name, Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return write(cmd.OutOrStdout()) },
	}
}

func newLogger(w io.Writer, cfg config.Config) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(cfg.LogLevel)) // one of four names, checked
	o := &slog.HandlerOptions{Level: level}
	if cfg.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
