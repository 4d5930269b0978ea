package berthd

import (
	"context"
	"slices"

	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/eni"
	"github.com/berthnet/berth/internal/source/nodenetwork"
)

// operatorMode is that of a daemon that uses what the operator publishes for its
// node. It has no client of EC2.
type operatorMode struct{ vpc }

func newOperatorMode(n *node) *operatorMode {
	m := &operatorMode{vpc{node: n}}
	m.ipv6 = m.hadIPv6
	return m
}

// hadIPv6 tells whether the operator had given this node IPv6 addresses when it was
// last heard of: pods may have some, which must not be cut off by a restart. Without
// an inventory that can be read there are none until the operator says so again.
func (m *operatorMode) hadIPv6() bool {
	inv, ok, err := eni.Files{Dir: m.cfg.StateDir}.Load()
	return ok && err == nil && inv.InstanceID == m.id.InstanceID && slices.ContainsFunc(inv.ENIs, hasIPv6)
}

func (m *operatorMode) newSource(context.Context) (source.Source, error) {
	c := nodenetwork.Config{
		NodeName: m.cfg.NodeName, Kubeconfig: m.cfg.Kubeconfig, InstanceID: m.id.InstanceID,
		Datapath: m.networks, Cooling: m.cfg.CoolingPeriod, Store: eni.Files{Dir: m.cfg.StateDir},
		Clock: m.clock, Logger: m.log, Reported: nodenetwork.CountReports(m.metrics.Registry),
	}
	if m.cfg.AutoCreateNodeNetwork {
		c.Spec = nodenetwork.SpecOf(&m.cfg, m.id)
	}
	return nodenetwork.New(c)
}
