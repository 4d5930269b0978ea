package ctl

import (
	"github.com/spf13/cobra"

	"github.com/berthnet/berth/internal/ctl/view"
)

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
