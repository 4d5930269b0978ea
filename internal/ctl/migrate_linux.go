package ctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/ctl/view"
	"github.com/berthnet/berth/internal/ec2/cloud/aws"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/migrate"
	"github.com/berthnet/berth/internal/migrate/awsvpccni"
)

// former is a system that nodes migrate from.
type former struct {
	name, title string
	open        func(config.Config, *slog.Logger, map[string]*string) (formerNode, error)
	flags       map[string][2]string // name to default and description
}

// formerNode is a node that is migrated.
type formerNode interface {
	migrate.System
	io.Closer
}

// formers are all systems of `berthctl migrate`.
var formers = []former{
	{migrate.AmazonVPCCNI, "the Amazon VPC CNI", openAmazonVPCCNI, map[string][2]string{
		"ipamd-dir":     {"/var/run/aws-node", "directory of ipamd's checkpoint and socket"},
		"cni-cache-dir": {"/var/lib/cni", "where the container runtime keeps what it passed to plugins, such as UIDs of pods"},
		"netns-dir":     {"/var/run/netns", "where the container runtime keeps network namespaces"},
	}},
	{migrate.Coil, "Coil v2", openCoilV2, coilV2Flags},
	{migrate.CoilV1, "Coil v1", openCoilV1, coilV1Flags},
}

func openAmazonVPCCNI(c config.Config, log *slog.Logger, flags map[string]*string) (formerNode, error) {
	return awsvpccni.New(awsvpccni.Options{
		Config: c, Metadata: aws.NewMetadata(aws.Options{IMDSEndpoint: c.IMDSEndpoint, Logger: log, UserAgent: "berthctl"}),
		RunDir: *flags["ipamd-dir"], CNICache: *flags["cni-cache-dir"], NetnsDirs: []string{*flags["netns-dir"]}, Proc: "/proc", Clock: clock.Real{}, Log: log,
	})
}

func newMigrate() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Move this node's pods from another network to Berth, or back",
		Long: `Move this node's pods from another network to Berth, or back. The pods keep running, with
their addresses and connections. Run it as root in the node's network namespace, while
neither daemon runs there. Settings are berthd's: its BERTH_ environment variables or flags.

"kubectl berth migrate" does this for all nodes of a cluster.`,
	}
	for _, f := range formers {
		sub := &cobra.Command{Use: f.name, Short: "Move from " + f.title + ", or back"}
		sub.AddCommand(
			f.command("plan", "Show what was found and what would be done; change nothing", planned),
			f.apply(),
			f.command("rollback", "Give all pods back", reported(migrate.System.Rollback)),
			f.command("verify", "Check that each address has one owner and each pod answers; change nothing", reported(migrate.System.Verify)),
		)
		cmd.AddCommand(sub)
	}
	cmd.AddCommand(newMigrateCilium())
	return cmd
}

// migration is a plan or a report.
type migration interface{ WriteText(io.Writer) error }

type step func(context.Context, migrate.System) (migration, error)

func planned(ctx context.Context, s migrate.System) (migration, error) {
	p, err := s.Plan(ctx)
	if err != nil {
		return nil, err
	}
	return p.Complete(), nil
}

func reported(of func(migrate.System, context.Context) (migrate.Report, error)) step {
	return func(ctx context.Context, s migrate.System) (migration, error) {
		r, err := of(s, ctx)
		return r.Complete(), err
	}
}

func (f former) apply() *cobra.Command {
	finish := false
	cmd := f.command("apply", "Adopt all pods", func(ctx context.Context, s migrate.System) (migration, error) {
		if finish {
			return reported(migrate.System.Finish)(ctx, s)
		}
		return reported(migrate.System.Apply)(ctx, s)
	})
	cmd.Flags().BoolVar(&finish, "finish", false, "remove what "+f.title+" left on the node; there is no rollback after it")
	return cmd
}

// migrateFlags are berthd's flags that people may set; the others are hidden.
var migrateFlags = map[string]bool{"output": true, "finish": true, "state-dir": true, "cni-conf-dir": true, "cni-network": true, "ipam": true, "node-name": true, "export-table": true}

func (f former) command(name, short string, do step) *cobra.Command {
	var out format
	cmd := &cobra.Command{Use: name, Short: short, Args: cobra.NoArgs}
	out.register(cmd)
	loader := config.NewLoader(cmd.Flags())
	own := map[string]*string{}
	shown := migrateFlags
	for flag, about := range f.flags {
		own[flag] = cmd.Flags().String(flag, about[0], about[1])
	}
	hide(cmd.Flags(), func(flag string) bool { _, is := own[flag]; return is || shown[flag] })
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := failpoint.Err(); err != nil {
			return err
		}
		c, err := loader.Load(os.Environ())
		if err != nil {
			return err
		}
		var level slog.Level
		if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
			return fmt.Errorf("log-level: %w", err)
		}
		log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
		node, err := f.open(c, log, own)
		if err != nil {
			return err
		}
		defer func() { _ = node.Close() }()
		result, err := do(cmd.Context(), node)
		if result == nil {
			return err
		}
		if out == jsonFmt {
			return errors.Join(err, view.WriteJSON(cmd.OutOrStdout(), result))
		}
		return errors.Join(err, result.WriteText(cmd.OutOrStdout()))
	}
	return cmd
}
