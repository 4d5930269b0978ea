package ctl

import (
	"context"
	"errors"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/internal/migrate/plugins"
)

// ciliumNode is a node that Cilium served. Its pods are replaced, and Cilium's own program removes the state of its data path
// before: the only step is the last one.
type ciliumNode struct {
	migrate.System // nil
	folders        plugins.Folders
}

// Close implements io.Closer.
func (ciliumNode) Close() error { return nil }

// Finish implements migrate.System.
func (n ciliumNode) Finish(context.Context) (r migrate.Report, err error) {
	r.From, r.Command = migrate.Cilium, "finish"
	r.Changed, r.Kept, err = n.folders.Remove("github.com/cilium/cilium", "cilium-cni")
	return r, err
}

func openCilium(c config.Config, _ *slog.Logger, flags map[string]*string) (formerNode, error) {
	n := ciliumNode{folders: plugins.Folders{Bin: c.CNIBinDir, Conf: c.CNIConfDir}}
	if plugins.EndsByResult(c.CRISocket) {
		n.folders.Results = *flags["results-dir"]
	}
	return n, nil
}

func newMigrateCilium() *cobra.Command {
	f := former{migrate.Cilium, "Cilium", openCilium, map[string][2]string{"results-dir": {"/var/lib/cni/results", "where the container runtime caches results"}}}
	finish := false
	apply := f.command("apply", "Remove Cilium's plugin from the node", func(ctx context.Context, s migrate.System) (migration, error) {
		if !finish {
			return nil, errors.New("pods of Cilium are replaced, not adopted: expected --finish here, or use kubectl berth migrate cilium")
		}
		return reported(migrate.System.Finish)(ctx, s)
	})
	apply.Flags().BoolVar(&finish, "finish", false, "remove what Cilium left on the node, once its own cleanup has run")
	cmd := &cobra.Command{Use: f.name, Short: "Remove what Cilium left"}
	cmd.AddCommand(apply)
	return cmd
}
