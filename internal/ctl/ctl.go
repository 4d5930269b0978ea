// Package ctl implements berthctl: views of a node for operators, and
// calculators for capacity planning. Views only read data that berthd serves.
package ctl

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/berthnet/berth/internal/ctl/bundle"
	"github.com/berthnet/berth/internal/ctl/plancmd"
	"github.com/berthnet/berth/internal/ctl/view"
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
	cmd.AddCommand(newIPManager(), newStatus(), newMaxPods(), newWarm(), plancmd.New(plancmd.Options{Page: planner.Page}), bundle.New(bundle.Options{Node: NodeParts}), newVersion())
	cmd.AddCommand(onNode()...)
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
