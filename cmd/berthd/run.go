package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/attachment"
	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/cloud"
	"github.com/berthnet/berth/internal/cloud/aws"
	"github.com/berthnet/berth/internal/cni"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/daemon"
	"github.com/berthnet/berth/internal/datapath"
	"github.com/berthnet/berth/internal/install"
	"github.com/berthnet/berth/internal/version"
	"github.com/berthnet/berth/internal/web"
)

const (
	retryPause = 5 * time.Second // between attempts of a step of the start

	withdrawTimeout = 5 * time.Second // for the kernel, at the end

	// metadataTimeout is short because asking is repeated.
	metadataTimeout = 5 * time.Second

	// pluginMargin is what the plugin's calls may take beyond the wait for an address.
	pluginMargin = 15 * time.Second
)

// node is what the parts of one berthd share.
type node struct {
	cfg     config.Config
	log     *slog.Logger
	clock   clock.Clock
	metrics *daemon.Metrics
	front   *daemon.Front
	bootID  string
	aws     aws.Options
	meta    cloud.Metadata
	id      cloud.Identity
	network *daemon.Network
}

// run serves until ctx ends.
func run(ctx context.Context, cfg config.Config, log *slog.Logger) error {
	log.Info("starting", "version", version.String(), "node", cfg.NodeName, "cluster", cfg.ClusterName, "ipam", cfg.IPAM)
	if len(cfg.Unknown) > 0 {
		log.Warn("environment variables that begin with BERTH_ and mean nothing: typing errors?", "names", cfg.Unknown)
	}
	n := &node{cfg: cfg, log: log, clock: clock.Real{}, metrics: daemon.NewMetrics()}
	if cfg.IPAM == config.IPAMPool {
		if err := n.datapathConfig().Validate(); err != nil {
			return fmt.Errorf("--export-table: %w", err)
		}
	}
	var err error
	if n.bootID, err = daemon.BootID(); err != nil {
		return err
	}
	lock, err := daemon.AcquireLock(ctx, cfg.StateDir, n.clock, log)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { n.ending(lock) })
	err = n.serve(ctx)
	stop()
	return errors.Join(err, lock.Release())
}

// ending tells a successor that it is worth waiting.
func (n *node) ending(lock *daemon.Lock) {
	if err := lock.Ending(); err != nil && !errors.Is(err, os.ErrClosed) {
		n.log.Warn("telling a successor that this daemon ends", "err", err)
	}
}

// serve opens what the node shows to others, waits for what it needs, and runs.
func (n *node) serve(ctx context.Context) error {
	if err := n.listen(); err != nil {
		return err
	}
	defer n.front.Close()
	if err := n.identify(ctx); err != nil {
		return unlessEnded(ctx, err)
	}
	kernel, err := datapath.Open()
	if err != nil {
		return err
	}
	n.network = daemon.NewNetwork(kernel)
	if err := n.until(ctx, "the node's data path", func() error { return n.network.Setup(ctx, n.datapathConfig()) }); err != nil {
		return unlessEnded(ctx, errors.Join(err, kernel.Close()))
	}
	err = n.runDaemon(ctx)
	if n.cfg.WithdrawOnExit {
		err = errors.Join(err, n.withdraw())
	}
	return errors.Join(err, kernel.Close())
}

// identify finds out who this node is: an instance of the cloud or, where
// addresses come from pools, the node of its name.
func (n *node) identify(ctx context.Context) error {
	if n.cfg.IPAM == config.IPAMPool {
		n.id = cloud.Identity{InstanceID: n.cfg.NodeName}
		return nil
	}
	n.aws = aws.Options{
		Region: n.cfg.Region, EC2Endpoint: n.cfg.EC2Endpoint, IMDSEndpoint: n.cfg.IMDSEndpoint,
		Observer: n.metrics.Cloud, Logger: n.log, UserAgent: "berthd", MetadataTimeout: metadataTimeout, Peers: true,
	}
	n.meta = aws.NewMetadata(n.aws)
	err := n.until(ctx, "the instance metadata service", func() (err error) {
		n.id, err = daemon.Identify(ctx, n.meta, n.cfg.StateDir, n.bootID, n.log)
		return err
	})
	if err == nil {
		n.log.Info("identified", "instance", n.id.InstanceID, "type", n.id.InstanceType, "zone", n.id.Zone, "vpc", n.id.VPCID)
	}
	return err
}

// withdraw takes the routes of the node's blocks from whoever announces them.
func (n *node) withdraw() error {
	ctx, cancel := context.WithTimeout(context.Background(), withdrawTimeout)
	defer cancel()
	if err := n.network.WithdrawBlocks(ctx); err != nil {
		return fmt.Errorf("withdrawing the routes of the node's blocks: %w", err)
	}
	n.log.Info("withdrew the routes of the node's blocks", "table", n.cfg.ExportTable)
	return nil
}

// listen opens the sockets and answers on them from now on.
func (n *node) listen() error {
	introspection, err := web.Listen("introspection-address", n.cfg.IntrospectionAddr)
	if err != nil {
		return err
	}
	monitoring, err := web.Listen("metrics-address", n.cfg.MetricsAddr)
	if err != nil {
		return err
	}
	plugin, err := daemon.Listen(n.cfg.Socket)
	if err != nil {
		return err
	}
	n.front = daemon.NewFront(daemon.FrontOptions{
		Plugin: plugin, Introspection: introspection, Monitoring: monitoring, Pprof: n.cfg.Pprof,
		Socket: n.cfg.Socket, Metrics: n.metrics, Clock: n.clock, Log: n.log,
	})
	return nil
}

// until repeats a step of the start until it works or ctx ends, and says
// meanwhile what is being waited for.
func (n *node) until(ctx context.Context, what string, step func() error) error {
	n.front.WaitingFor(what)
	for {
		err := step()
		if err == nil || ctx.Err() != nil {
			return err
		}
		n.front.WaitingFor(fmt.Sprintf("%s: %s", what, err))
		n.log.Warn("waiting, will try again", "for", what, "err", err)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-n.clock.After(retryPause):
		}
	}
}

// unlessEnded is err, or nil once the daemon was asked to end: what failed then
// failed because of that.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return nil
}

func (n *node) datapathConfig() datapath.Config {
	if n.cfg.IPAM == config.IPAMPool {
		// IPv6 is turned on with the first block that has it.
		return datapath.Config{ExportTable: n.cfg.ExportTable, BlockMetadata: n.cfg.BlocksMetadata(),
			MaxConnections: n.cfg.MaxConnections, MTU: n.cfg.MTU}
	}
	return datapath.Config{
		PrimaryMAC: n.id.PrimaryMAC, PrimaryIPv4: n.id.PrimaryIPv4,
		LocalCIDRs: podCIDRs(n.id), ExcludeCIDRs: n.cfg.ExcludeSNATCIDRs, ExternalSNAT: n.cfg.ExternalSNAT,
		BlockMetadata: n.cfg.BlocksMetadata(), MaxConnections: n.cfg.MaxConnections, MTU: n.cfg.MTU, MarkShift: uint(n.cfg.MarkShift),
	}
}

// podCIDRs are the VPC's CIDRs of the family that pods get from ENIs.
func podCIDRs(id cloud.Identity) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(id.VPCCIDRs), func(p netip.Prefix) bool { return !p.Addr().Is4() })
}

// runDaemon puts the address source and the daemon together and runs them.
func (n *node) runDaemon(ctx context.Context) error {
	src, err := n.newSource(ctx)
	if err != nil {
		return err
	}
	store, bad, err := attachment.Open(filepath.Join(n.cfg.StateDir, "attachments"),
		attachment.Node{InstanceID: n.id.InstanceID, BootID: n.bootID}, n.log)
	if err != nil {
		return err
	}
	o := daemon.Options{
		Source: src, Kernel: n.network, Upkeep: n.network, LinksChanged: src.Kick,
		Store: store, Quarantined: bad, Metrics: n.metrics, Clock: n.clock, Log: n.log,
		NodeName: n.cfg.NodeName, StateDir: n.cfg.StateDir, IPAM: n.cfg.IPAM,
		WarmWait: n.cfg.WarmWait, DrainTimeout: n.cfg.DrainTimeout, NetnsGrace: n.cfg.NetnsGrace, RepairInterval: n.cfg.RepairInterval,
	}
	if n.cfg.CRISocket != "" {
		runtime, err := daemon.NewRuntime(n.cfg.CRISocket)
		if err != nil {
			return err
		}
		defer runtime.Close()
		o.Sandboxes = runtime
	}
	if n.cfg.InstallCNI {
		if o.Install, err = n.installer(); err != nil {
			return err
		}
	}
	if n.cfg.IPAM != config.IPAMPool {
		go n.followCIDRs(ctx)
	}
	return daemon.New(o).Run(ctx, n.front)
}

// followCIDRs keeps the data path to the VPC's CIDRs, of which one may be
// associated at any time, until ctx ends.
func (n *node) followCIDRs(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.clock.After(n.cfg.ListingInterval):
		}
		cidrs, ok := n.vpcCIDRs(ctx)
		if !ok {
			continue // they stay as they are
		}
		switch changed, err := n.network.SetLocalCIDRs(ctx, cidrs); {
		case err != nil:
			n.log.Warn("taking over the VPC's CIDRs, will try again", "cidrs", cidrs, "err", err)
		case changed:
			n.log.Info("the VPC's CIDRs changed", "cidrs", cidrs)
		}
	}
}

// vpcCIDRs asks for podCIDRs again. What is said of another instance says nothing of
// this one; a metadata service that does not answer was told of at the start.
func (n *node) vpcCIDRs(ctx context.Context) (_ []netip.Prefix, ok bool) {
	id, err := n.meta.Identity(ctx)
	if err != nil {
		return nil, false
	}
	if id.InstanceID != n.id.InstanceID {
		n.log.Error("the metadata service names another instance, whose VPC is not looked at", "instance", n.id.InstanceID, "other", id.InstanceID)
		return nil, false
	}
	return podCIDRs(id), true
}

// installer returns what installs the plugin and its configuration, and says
// what it did and found.
func (n *node) installer() (func(context.Context) (string, error), error) {
	plugin := n.cfg.CNIPlugin
	if plugin == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("finding the plugin beside berthd: %w; set --cni-plugin", err)
		}
		plugin = filepath.Join(filepath.Dir(self), "berth")
	}
	o := install.Options{
		Plugin: plugin, BinDir: n.cfg.CNIBinDir, ConfDir: n.cfg.CNIConfDir, ConfName: n.cfg.CNIConfName,
		Network: install.Network{
			CNIVersion: n.cfg.CNIVersion, Name: n.cfg.CNINetwork, Socket: n.cfg.Socket, Chain: n.cfg.CNIChain,
			Timeout: max(n.cfg.WarmWait+pluginMargin, cni.DefaultTimeout),
		},
	}
	if n.cfg.IPAM == config.IPAMPool {
		o.Network.Tells = []string{cni.PodAnnotations} // a pod may choose its pool by one
	}
	return func(context.Context) (string, error) {
		report, err := install.Install(o)
		if err != nil {
			return "", err
		}
		if len(report.Changed) > 0 {
			n.log.Info("installed", "files", report.Changed)
		}
		var notes []string
		if len(report.LeftOut) > 0 {
			notes = append(notes, fmt.Sprintf("left out of the chain, as not in %s: %s", o.BinDir, strings.Join(report.LeftOut, ", ")))
		}
		if len(report.Preferred) > 0 {
			notes = append(notes, "the runtime may take another network's configuration, whose name sorts first: "+strings.Join(report.Preferred, ", "))
		}
		return strings.Join(notes, "; "), nil
	}, nil
}
