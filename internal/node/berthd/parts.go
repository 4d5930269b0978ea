package berthd

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/hybrid"
	"github.com/berthnet/berth/internal/kernel/plug/nsveth"
	"github.com/berthnet/berth/internal/kernel/plug/ovs"
	"github.com/berthnet/berth/internal/kernel/plug/ovsdb"
	"github.com/berthnet/berth/internal/kernel/plug/routedvlan"
	"github.com/berthnet/berth/internal/kernel/plug/tap"
	"github.com/berthnet/berth/internal/kernel/plug/vlan"
	"github.com/berthnet/berth/internal/kubeapi"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/nics"
	"github.com/berthnet/berth/internal/node/podegress"
	"github.com/berthnet/berth/internal/node/podevents"
)

// ports plug NICs that are ports of VPCs.
type ports struct {
	nics  *nics.NICs
	close func()
}

// openPorts creates the ports for the attachments of a store. needIPv6 turns IPv6 on. It does not call
// Open vSwitch or the API server yet.
func (n *node) openPorts(store *attachment.Store, needIPv6 func(context.Context) error) (*ports, error) {
	p, err := n.deps.OpenPluggers(n.cfg, n.log)
	if err != nil {
		return nil, err
	}
	nics, err := nics.New(nics.Config{
		NodeName: n.cfg.NodeName, Kubeconfig: n.cfg.Kubeconfig, Bridges: n.cfg.OVSBridges, Plugger: p.Plugger, Switch: p.Switch,
		FirstIsPort: n.cfg.IPAM == config.IPAMPort, FirstMayBeBranch: firstMayBeBranch(n.cfg),
		Enforcing: plug.Enforcing(n.cfg.GroupEnforcing), NeedIPv6: needIPv6, IgnoreUntold: n.cfg.IgnoreUntoldAnnotations,
		Recorded: func(id string) bool { _, ok := store.ByPort(id); return ok },
		Clock:    n.clock, Logger: n.log, Metrics: nics.NewMetrics(n.metrics.Registry),
	})
	if err != nil {
		p.Close()
		return nil, err
	}
	return &ports{nics: nics, close: p.Close}, nil
}

func firstMayBeBranch(cfg config.Config) bool { return cfg.IPAM == config.IPAMENIOperator }

// Pluggers plug ports of all kinds.
type Pluggers struct {
	plug.Plugger
	Switch nics.Switch // nil: the node has no Open vSwitch
	Close  func()
}

// openPluggers opens the machine's pluggers.
func openPluggers(cfg config.Config, log *slog.Logger) (out Pluggers, err error) {
	var opened []func()
	out.Close = func() {
		for i := len(opened) - 1; i >= 0; i-- {
			opened[i]()
		}
	}
	defer func() {
		if err != nil {
			out.Close()
		}
	}()
	agent, err := nsveth.New(nsveth.Options{Prefixes: cfg.AgentNamespaces, Wait: cfg.AgentWait, Sysctls: cfg.SysctlDir})
	if err != nil {
		return out, fmt.Errorf("--agent-netns-prefixes, --agent-wait: %w", err)
	}
	// OVS and OVSHybrid name links after ports, so they take turns. Without --ovsdb they only remove
	// what was plugged before.
	common := ovs.Options{Bridges: cfg.OVSBridges, Turns: &plug.Turns{}, Sysctls: cfg.SysctlDir, Logger: log}
	if cfg.OVSDB != "" {
		db, err := ovsdb.New(cfg.OVSDB, log)
		if err != nil {
			return out, fmt.Errorf("--ovsdb: %w", err)
		}
		opened = append(opened, db.Close)
		common.OVSDB, out.Switch = db, db
	}
	straight, err := ovs.New(common)
	if err != nil {
		return out, err
	}
	opened = append(opened, straight.Close)
	filtered, err := hybrid.New(common)
	if err != nil {
		return out, err
	}
	opened = append(opened, filtered.Close)
	branches, err := vlan.New(vlan.Options{Sysctls: cfg.SysctlDir})
	if err != nil {
		return out, err
	}
	opened = append(opened, branches.Close)
	pluggers := plug.Set{plug.Netns: agent, plug.OVS: straight, plug.OVSHybrid: filtered, plug.VLAN: branches}
	if firstMayBeBranch(cfg) {
		routed, err := routedvlan.New(routedvlan.Options{VLANs: branches, MarkShift: uint(cfg.MarkShift), Sysctls: cfg.SysctlDir})
		if err != nil {
			return out, err
		}
		opened = append(opened, routed.Close)
		pluggers[plug.RoutedVLAN] = routed
	}
	out.Plugger, err = tap.New(pluggers, cfg.SysctlDir)
	return out, err
}

// openEgress creates the egress of pods. It does not use the kernel or the API server yet.
func (n *node) openEgress() (*podegress.Clients, error) {
	var full podegress.Full
	if n.tell != nil {
		full = func(rec attachment.Record, message string) {
			n.tell(podevents.News{Pod: rec.Pod, IfName: rec.Key.IfName, Kind: podevents.GatewayFull, Cause: podevents.ConnectionsFull, Message: message})
		}
	}
	return podegress.New(podegress.Config{
		NodeName: n.cfg.NodeName, Namespace: n.cfg.Namespace, Kubeconfig: n.cfg.Kubeconfig, Kernel: n.deps.Egress(n.cfg.SysctlDir), Ask: n.deps.AskGateway,
		Port: uint16(n.cfg.EgressPort), ClusterNetworks: n.clusterNetworks(), ProbeInterval: n.cfg.EgressProbeInterval, Full: full,
		Clock: n.clock, Logger: n.log, Metrics: podegress.NewMetrics(n.metrics.Registry),
	})
}

// setVPC sets the CIDRs of the node's VPC, which egress leaves alone.
func (n *node) setVPC(cidrs []netip.Prefix) {
	n.vpcCIDRs = cidrs
	if n.egress != nil {
		n.egress.SetClusterNetworks(n.clusterNetworks())
	}
}

// clusterNetworks are the networks whose packets keep their route although an Egress has a default
// route.
func (n *node) clusterNetworks() []netip.Prefix {
	networks := slices.Clone(n.cfg.EgressClusterNetworks)
	for _, p := range n.vpcCIDRs {
		if !slices.Contains(networks, p) {
			networks = append(networks, p)
		}
	}
	return networks
}

// podEvents returns the writer of Events on pods, or nil when they are disabled. Node mode needs the
// Kubernetes API for nothing else, so without access to it there are no Events unless the settings
// require them.
func (n *node) podEvents() (*podevents.Recorder, error) {
	if n.cfg.PodEvents == config.PodEventsNever {
		return nil, nil
	}
	writer, err := kubeapi.NewPodEvents(n.cfg.Kubeconfig)
	switch {
	case err == nil:
	case n.cfg.PodEvents == config.PodEventsAuto && n.cfg.IPAM == config.IPAMENI && n.cfg.Kubeconfig == "":
		n.log.Info("Pods are told of nothing by Events: there is no service account and no --kubeconfig", "err", err)
		return nil, nil
	default:
		return nil, fmt.Errorf("Events of Pods (--pod-events=%s): %w", n.cfg.PodEvents, err)
	}
	return podevents.New(podevents.Options{
		Node: n.cfg.NodeName, Writer: writer, Clock: n.clock, Log: n.log, Counted: n.metrics.CountPodEvents,
	}), nil
}
