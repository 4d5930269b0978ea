package berthd

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/kernel/plug/hybrid"
	"github.com/berthnet/berth/internal/kernel/plug/nsveth"
	"github.com/berthnet/berth/internal/kernel/plug/ovs"
	"github.com/berthnet/berth/internal/kernel/plug/ovsdb"
	"github.com/berthnet/berth/internal/kernel/plug/routedvlan"
	"github.com/berthnet/berth/internal/kernel/plug/tap"
	"github.com/berthnet/berth/internal/kernel/plug/vlan"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/node/nics"
)

// ports are what plugs NICs that are ports of VPCs into pods.
type ports struct {
	nics  *nics.NICs
	close func()
}

// openPorts makes it, for the attachments of a store, with what turns IPv6 on. Nothing is asked of Open
// vSwitch or the API server yet.
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
		Clock:    n.clock, Logger: n.log, Observer: nics.NewMetrics(n.metrics.Registry),
	})
	if err != nil {
		p.Close()
		return nil, err
	}
	return &ports{nics: nics, close: p.Close}, nil
}

func firstMayBeBranch(cfg config.Config) bool { return cfg.IPAM == config.IPAMENIOperator }

// Pluggers plug ports of all kinds, in which the node's Open vSwitch has a part if it has one.
type Pluggers struct {
	plug.Plugger
	Switch nics.Switch // nil: it has none
	Close  func()
}

// openPluggers opens those of the machine.
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
	// OVS and OVSHybrid name links after ports, so they take turns. Without --ovsdb they take away
	// what was plugged while there was one.
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
