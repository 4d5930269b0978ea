// Package berthd assembles the node daemon from its settings: the address source, the data path, the
// parts, and a daemon.Daemon that uses them.
//
//	berthd.go        startup and shutdown
//	dependencies.go  external dependencies of the daemon
//	mode.go          differences between the modes (--ipam); modes "port" and "none"
//	vpc.go           modes with ENIs
//	identity.go      the identity of the instance, even if the metadata service is down
//	nodemode.go      ENIs that the daemon manages, and ENIs that the operator manages
//	routed.go        mode "pool"
//	vpcnetworks.go   the VPC's CIDRs
//	parts.go         NICs, egress and Events on pods, in all modes
//	policies.go      network policies, in all modes
//	installer.go     installation of the plugin and its configuration
package berthd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/daemon"
	"github.com/berthnet/berth/internal/node/daemon/egresspart"
	"github.com/berthnet/berth/internal/node/daemon/nicpart"
	"github.com/berthnet/berth/internal/node/daemon/part"
	"github.com/berthnet/berth/internal/node/daemon/policypart"
	"github.com/berthnet/berth/internal/node/foreign"
	"github.com/berthnet/berth/internal/node/install"
	"github.com/berthnet/berth/internal/node/introspect"
	"github.com/berthnet/berth/internal/node/networkpolicy"
	"github.com/berthnet/berth/internal/node/podegress"
	"github.com/berthnet/berth/internal/node/podevents"
	"github.com/berthnet/berth/internal/node/uplinks"
	"github.com/berthnet/berth/internal/retry"
	"github.com/berthnet/berth/internal/version"
	"github.com/berthnet/berth/internal/web"
)

const retryPause = 5 * time.Second // between attempts of a startup step

// node holds the state that all modes share.
type node struct {
	cfg     config.Config
	log     *slog.Logger
	clock   clock.Clock
	deps    Dependencies
	metrics *daemon.Metrics
	front   *daemon.Front
	bootID  string
	ports   *ports             // nil until opened, or when not configured
	egress  *podegress.Clients // likewise
	// policies enforces network policies; nil until opened, or when they are off.
	policies *networkpolicy.Enforcer
	tell     func(podevents.News) // nil without Events
	// vpcCIDRs are the CIDRs of the node's VPC, of both families; none without a VPC.
	vpcCIDRs []netip.Prefix
}

// Run serves until ctx ends or an error occurs. Log and readiness report what it waits for, such
// as the metadata service.
func Run(ctx context.Context, cfg config.Config, log *slog.Logger) error {
	return RunWith(ctx, cfg, log, machine())
}

// RunWith is Run with other dependencies than the machine's.
func RunWith(ctx context.Context, cfg config.Config, log *slog.Logger, deps Dependencies) error {
	log.Info("starting", "version", version.String(), "node", cfg.NodeName, "cluster", cfg.ClusterName, "ipam", cfg.IPAM)
	if len(cfg.Unknown) > 0 {
		log.Warn("ignoring unknown environment variables with the prefix BERTH_", "names", cfg.Unknown)
	}
	n := &node{cfg: cfg, log: log, clock: deps.Clock, deps: deps, metrics: daemon.NewMetrics()}
	m := modes[cfg.IPAM].of(n)
	err := m.check()
	if err != nil {
		return err
	}
	if n.bootID, err = daemon.BootID(); err != nil {
		return err
	}
	lock, err := daemon.AcquireLock(ctx, cfg.StateDir, n.clock, log)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { n.ending(lock) })
	err = n.serve(ctx, m)
	stop()
	return errors.Join(err, lock.Release())
}

// ending notifies a waiting successor that this daemon is shutting down.
func (n *node) ending(lock *daemon.Lock) {
	if err := lock.Ending(); err != nil && !errors.Is(err, os.ErrClosed) {
		n.log.Warn("announcing the shutdown to a successor failed", "err", err)
	}
}

// serve opens the sockets, waits for what the node needs, and runs the daemon.
func (n *node) serve(ctx context.Context, m mode) error {
	teller, err := n.podEvents()
	if err != nil {
		return err
	}
	if err := n.listen(teller); err != nil {
		return err
	}
	defer n.front.Close()
	if teller != nil {
		n.tell = teller.Record
		defer background(ctx, teller.Run)()
	}
	instanceID, err := m.identify(ctx)
	if err != nil {
		return unlessEnded(ctx, err)
	}
	kernel, err := n.deps.OpenDatapath()
	if err != nil {
		return err
	}
	var net daemon.Kernel
	if err := n.until(ctx, "the node's data path", func() (err error) { net, err = m.setUp(ctx, kernel); return err }); err != nil {
		return unlessEnded(ctx, errors.Join(err, kernel.Close()))
	}
	err = n.runDaemon(ctx, m, instanceID, net)
	return errors.Join(err, m.end(), kernel.Close())
}

// listen opens the sockets and starts to serve them.
func (n *node) listen(teller *podevents.Recorder) error {
	introspection, err := web.Listen("introspection-address", n.cfg.IntrospectionAddr)
	if err != nil {
		return err
	}
	monitoring, err := web.Listen("metrics-address", n.cfg.MetricsAddr)
	if err != nil {
		return err
	}
	plugin, err := n.deps.Listen(n.cfg.Socket)
	if err != nil {
		return err
	}
	o := daemon.FrontOptions{
		Plugin: plugin, Introspection: introspection, Monitoring: monitoring, Pprof: n.cfg.Pprof,
		Socket: n.cfg.Socket, Metrics: n.metrics, Clock: n.clock, Log: n.log,
		Settings: introspect.Settings{Version: version.String(), Settings: n.cfg.Effective, Unknown: n.cfg.Unknown},
	}
	if teller != nil {
		o.Tell = teller.Record
	}
	n.front = daemon.NewFront(o)
	return nil
}

// background starts run, which runs until the returned function is called and has waited for it to end.
func background(ctx context.Context, run func(context.Context)) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// until repeats a startup step until it succeeds or ctx ends, and reports what it waits for.
func (n *node) until(ctx context.Context, what string, step func() error) error {
	n.front.WaitingFor(what)
	return retry.Until(ctx, n.clock, retry.Policy{First: retryPause, Most: retryPause}, func(ctx context.Context) error {
		err := step()
		if err != nil && ctx.Err() == nil {
			n.front.WaitingFor(fmt.Sprintf("%s: %s", what, err))
			n.log.Warn("waiting, will try again", "for", what, "err", err)
		}
		return err
	})
}

// unlessEnded returns err, or nil if a request to shut down caused it.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return nil
}

// datapathConfig is the configuration that the data paths of all modes share.
func (n *node) datapathConfig() datapath.Config { return uplinks.Settings(n.cfg, n.log) }

// runDaemon assembles and runs the daemon.
func (n *node) runDaemon(ctx context.Context, m mode, instanceID string, net daemon.Kernel) error {
	store, bad, err := attachment.Open(filepath.Join(n.cfg.StateDir, "attachments"),
		attachment.Node{InstanceID: instanceID, BootID: n.bootID}, n.log)
	if err != nil {
		return err
	}
	if n.cfg.HasPorts() {
		if n.ports, err = n.openPorts(store, m.needIPv6); err != nil {
			return err
		}
		defer n.ports.close()
	}
	if n.cfg.Egress {
		if n.egress, err = n.openEgress(); err != nil {
			return err
		}
	}
	if err := n.openPolicies(store); err != nil {
		return err
	}
	src, err := m.newSource(ctx)
	if err != nil {
		return unlessEnded(ctx, err)
	}
	o := daemon.Options{
		Source: src, Kernel: net, Parts: n.parts(store), Store: store, Quarantined: bad, InspectNetns: n.deps.InspectNetns,
		Node:    daemon.Node{NodeName: n.cfg.NodeName, StateDir: n.cfg.StateDir, IPAM: n.cfg.IPAM, Chained: n.cfg.IPAM == config.IPAMNone, Fixed: settingsCondition(n.cfg.Drift)},
		Times:   daemon.Times{WarmWait: n.cfg.WarmWait, DrainTimeout: n.cfg.DrainTimeout, NetnsGrace: n.cfg.NetnsGrace, RepairInterval: n.cfg.RepairInterval},
		Repair:  daemon.Repair{Tell: n.tell, RemoveForeignAddresses: n.cfg.ForeignAddresses == config.ForeignRemove},
		Metrics: n.metrics, Clock: n.clock, Log: n.log,
	}
	o.Repair.Foreign = n.foreign()
	if n.policies != nil {
		o.Policies = n.policies
	}
	o.Repair.Upkeep, _ = net.(daemon.Upkeep)
	if n.cfg.CRISocket != "" {
		runtime, err := daemon.NewRuntime(n.cfg.CRISocket)
		if err != nil {
			return err
		}
		defer runtime.Close()
		o.Sandboxes = runtime
	}
	if n.cfg.InstallCNI {
		if o.Install, err = n.installer(tells(o)); err != nil {
			return err
		}
	}
	go m.follow(ctx)
	return daemon.New(o).Run(ctx, n.front)
}

// settingsCondition returns the condition SettingsAsInstalled, or none if it is not known what the chart installed.
func settingsCondition(d config.Drift) []daemon.Condition {
	if d.Installed == nil {
		return nil
	}
	c := daemon.Condition{Type: daemon.ConditionSettings, Healthy: true, Reason: "AsInstalled"}
	if message := d.Message(); message != "" {
		c.Healthy, c.Reason, c.Message = false, "Drifted", message
	}
	return []daemon.Condition{c}
}

// foreign returns the observer of other software on the node, or nil where Berth hands out no addresses of the node.
func (n *node) foreign() daemon.Foreign {
	if n.deps.Foreign == nil || n.cfg.IPAM == config.IPAMPort || n.cfg.IPAM == config.IPAMNone {
		return nil
	}
	if slices.Contains(n.cfg.AdoptENIs, foreign.AmazonVPCCNI.Label()) {
		// A reboot has removed the fence of the migration.
		if fenced, err := foreign.Fence(n.cfg.AWSCheckpoints); err != nil {
			n.log.Warn("keeping the Amazon VPC CNI from starting failed", "dir", n.cfg.AWSCheckpoints, "err", err)
		} else if fenced {
			n.log.Info("the Amazon VPC CNI cannot start on this node any more", "file", filepath.Join(n.cfg.AWSCheckpoints, foreign.CheckpointName))
		}
	}
	return n.deps.Foreign(foreign.Options{
		Checkpoints: n.cfg.AWSCheckpoints, ConfDir: n.cfg.CNIConfDir, Netns: netnsDir, Clock: n.clock, Log: n.log,
		Configs: func() (list []foreign.Config, err error) {
			found, err := install.Configurations(n.cfg.CNIConfDir)
			for _, c := range found {
				list = append(list, foreign.Config(c))
			}
			return list, err
		},
	})
}

// netnsDir is where container runtimes keep the network namespaces of pods.
const netnsDir = "/run/netns"

// parts returns the parts of the daemon, in the order in which they are set up: egress packets leave
// through NICs, and policies judge the addresses of all. A part that is not configured still rejects attachments that use it.
func (n *node) parts(store *attachment.Store) []part.Part {
	parts := []part.Part{nicpart.Unconfigured(n.log), egresspart.Unconfigured(n.log)}
	if n.ports != nil {
		parts[0] = nicpart.New(nicpart.Options{NICs: n.ports.nics, Store: store, Wait: n.cfg.PortWait, Count: n.metrics.CountNICs, Log: n.log})
	}
	if n.egress != nil {
		parts[1] = egresspart.New(egresspart.Options{
			Egress: n.egress, Store: store, Wait: n.cfg.EgressWait, GatewayWait: n.cfg.EgressGatewayWait,
			Count: n.metrics.CountEgress, Clients: daemon.EgressClients, InspectNetns: n.deps.InspectNetns, Log: n.log,
		})
	}
	if n.policies != nil {
		parts = append(parts, policypart.New(policypart.Options{
			Enforcer: n.policies, Store: store, Wait: n.cfg.NetworkPolicyWait, StartUnknown: n.cfg.NetworkPolicyUnknown == config.UnknownStart,
			TunnelPort: uint16(n.cfg.EgressPort), Metrics: n.policies.Metrics, Log: n.log,
		}))
	}
	return parts
}
