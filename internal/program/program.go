// Package program is the common main of Berth's long-running programs: settings,
// a logger, signals and the pages of their reference.
package program

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
	"github.com/spf13/pflag"

	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/version"
)

// Settings are the loaded and validated settings of a program.
type Settings interface {
	Logger(io.Writer) *slog.Logger
}

// Program is a program with settings of type C.
type Program[C Settings] struct {
	Name, Short, Long string

	Loader func(*pflag.FlagSet) *config.Loader[C]
	Run    func(context.Context, C, *slog.Logger) error
	// Patient programs end on their own after the first signal; further signals are ignored.
	Patient bool
	// Pages write the pages of the documentation, by the hidden command that prints them.
	Pages map[string]func(io.Writer) error
}

// Main runs the program until it ends or receives SIGTERM or SIGINT, and exits
// with 1 after an error. A second signal kills it, unless it is Patient.
func (p Program[C]) Main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	if !p.Patient {
		context.AfterFunc(ctx, stop)
	}
	if err := p.Command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, p.Name+":", err)
		os.Exit(1)
	}
}

// Command is the program's command line. One error reports all invalid flags and
// variables.
func (p Program[C]) Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:           p.Name,
		Short:         p.Short,
		Long:          p.Long + " Every flag has an environment variable, named in parentheses; the flag wins.",
		Version:       version.String(),
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	loader := p.Loader(cmd.Flags())
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
		return p.Run(cmd.Context(), cfg, cfg.Logger(os.Stderr))
	}
	for name, write := range p.Pages {
		cmd.AddCommand(&cobra.Command{
			Use: name, Hidden: true, Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return write(cmd.OutOrStdout()) },
		})
	}
	cmd.CompletionOptions.DisableDefaultCmd = true
	return cmd
}
