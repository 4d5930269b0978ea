package ctl

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/berthnet/berth/internal/ctl/bundle"
	"github.com/berthnet/berth/internal/ctl/bundle/local"
	"github.com/berthnet/berth/internal/node/install"
)

// NodeParts returns the parts of a support bundle of this node.
var NodeParts bundle.NodeParts = local.Parts

// onNode returns the commands that change this node.
func onNode() []*cobra.Command { return []*cobra.Command{newMigrate(), newUninstall()} }

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
