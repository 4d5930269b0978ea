// Package ctl implements berthctl: views of a node for operators, and
// calculators for capacity planning. Views only read data that berthd serves.
package ctl

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/berthnet/berth/internal/ctl/bundle"
	"github.com/berthnet/berth/internal/ctl/plancmd"
	"github.com/berthnet/berth/internal/ctl/view"
	"github.com/berthnet/berth/internal/node/install"
	"github.com/berthnet/berth/internal/version"
	"github.com/berthnet/berth/web/planner"
)

// New returns the berthctl command. Its errors are meant to be printed to the user.
func New() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "berthctl",
		Short:             "Show a node's addresses, and plan capacity",
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	cmd.AddCommand(newIPManager(), newStatus(), newMaxPods(), newWarm(), plancmd.New(plancmd.Options{Page: planner.Page}), newMigrate(), newUninstall(), bundle.New(bundle.Options{}), newVersion())
	return cmd
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version.String())
			return err
		},
	}
}

// format is the value of the flag -o.
type format string

const (
	table   format = "table"
	jsonFmt format = "json"
)

func (f *format) String() string { return string(*f) }
func (f *format) Type() string   { return "table|json" }

// Set implements pflag.Value.
func (f *format) Set(s string) error {
	if s != string(table) && s != string(jsonFmt) {
		return fmt.Errorf("expected %s or %s", table, jsonFmt)
	}
	*f = format(s)
	return nil
}

func (f *format) register(cmd *cobra.Command) {
	*f = table
	cmd.Flags().VarP(f, "output", "o", "output format")
}

func newIPManager() *cobra.Command {
	var n node
	var out format
	cmd := &cobra.Command{
		Use:   "ip-manager",
		Short: "Show this node's addresses and the pods that hold them",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			doc, err := n.document(cmd.Context())
			if err != nil {
				return err
			}
			if out == jsonFmt {
				return view.WriteJSON(cmd.OutOrStdout(), doc)
			}
			p := &view.Printer{W: cmd.OutOrStdout()}
			view.Node(p, doc)
			return p.Err
		},
	}
	n.register(cmd)
	out.register(cmd)
	return cmd
}

func newUninstall() *cobra.Command {
	var dir, name string
	cmd := &cobra.Command{
		Use:   "uninstall-cni",
		Short: "Remove Berth's network configuration from this node",
		Long: `Remove Berth's network configuration from this node, which then gets no new pods.
The plugin's binary stays, because the removal of running pods needs it. A running
berthd with --install-cni restores the configuration.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path := filepath.Join(dir, name)
			removed, err := install.Uninstall(dir, name)
			if err != nil {
				return err
			}
			what := "removed"
			if !removed {
				what = "no configuration of Berth at"
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), what, path)
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "cni-conf-dir", "/etc/cni/net.d", "where the runtime looks for network configuration")
	cmd.Flags().StringVar(&name, "cni-conf-name", "10-berth.conflist", "name of the configuration file")
	return cmd
}
