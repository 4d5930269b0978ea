package berthd

import (
	"context"
	"fmt"

	"github.com/berthnet/berth/internal/attachment"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/plug"
	"github.com/berthnet/berth/internal/plug/hybrid"
	"github.com/berthnet/berth/internal/plug/nsveth"
	"github.com/berthnet/berth/internal/plug/ovs"
	"github.com/berthnet/berth/internal/plug/ovsdb"
	"github.com/berthnet/berth/internal/plug/routedvlan"
	"github.com/berthnet/berth/internal/plug/tap"
	"github.com/berthnet/berth/internal/plug/vlan"
	"github.com/berthnet/berth/internal/source/port"
)

// ports are what plugs NICs that are ports of VPCs into pods.
type ports struct {
	nics  *port.NICs
	close func()
}

// openPorts makes it, for the attachments of a store, with what turns IPv6 on. Nothing is asked of Open
// vSwitch or the API server yet.
func (n *node) openPorts(store *attachment.Store, needIPv6 func(context.Context) error) (_ *ports, err error) {
	var opened []func()
	end := func() {
		for i := len(opened) - 1; i >= 0; i-- {
			opened[i]()
		}
	}
	defer func() {
		if err != nil {
			end()
		}
	}()
	agent, err := nsveth.New(nsveth.Options{Prefixes: n.cfg.AgentNamespaces, Wait: n.cfg.AgentWait, Sysctls: n.cfg.SysctlDir})
	if err != nil {
		return nil, fmt.Errorf("--agent-netns-prefixes, --agent-wait: %w", err)
	}
	o := port.Config{
		NodeName: n.cfg.NodeName, Kubeconfig: n.cfg.Kubeconfig, Bridges: n.cfg.OVSBridges,
		FirstIsPort: n.cfg.IPAM == config.IPAMPort, FirstMayBeBranch: n.cfg.IPAM == config.IPAMENIOperator,
		Enforcing: plug.Enforcing(n.cfg.GroupEnforcing), NeedIPv6: needIPv6, IgnoreUntold: n.cfg.IgnoreUntoldAnnotations,
		Recorded: func(id string) bool { _, ok := store.ByPort(id); return ok },
		Clock:    n.clock, Logger: n.log, Observer: port.NewMetrics(n.metrics.Registry),
	}
	// OVS and OVSHybrid name links after ports, so they take turns. Without --ovsdb they take away
	// what was plugged while there was one.
	common := ovs.Options{Bridges: n.cfg.OVSBridges, Turns: &plug.Turns{}, Sysctls: n.cfg.SysctlDir, Logger: n.log}
	if n.cfg.OVSDB != "" {
		db, err := ovsdb.New(n.cfg.OVSDB, n.log)
		if err != nil {
			return nil, fmt.Errorf("--ovsdb: %w", err)
		}
		opened = append(opened, db.Close)
		common.OVSDB, o.Switch = db, db
	}
	straight, err := ovs.New(common)
	if err != nil {
		return nil, err
	}
	opened = append(opened, straight.Close)
	filtered, err := hybrid.New(common)
	if err != nil {
		return nil, err
	}
	opened = append(opened, filtered.Close)
	branches, err := vlan.New(vlan.Options{Sysctls: n.cfg.SysctlDir})
	if err != nil {
		return nil, err
	}
	opened = append(opened, branches.Close)
	pluggers := plug.Set{plug.Netns: agent, plug.OVS: straight, plug.OVSHybrid: filtered, plug.VLAN: branches}
	if o.FirstMayBeBranch {
		routed, err := routedvlan.New(routedvlan.Options{VLANs: branches, MarkShift: uint(n.cfg.MarkShift), Sysctls: n.cfg.SysctlDir})
		if err != nil {
			return nil, err
		}
		opened = append(opened, routed.Close)
		pluggers[plug.RoutedVLAN] = routed
	}
	if o.Plugger, err = tap.New(pluggers, n.cfg.SysctlDir); err != nil {
		return nil, err
	}
	nics, err := port.New(o)
	if err != nil {
		return nil, err
	}
	return &ports{nics: nics, close: end}, nil
}
