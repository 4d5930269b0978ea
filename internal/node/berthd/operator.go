package berthd

import (
	"context"

	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/enisource"
	"github.com/berthnet/berth/internal/source/nodenetworksupplier"
)

// operatorMode is that of a daemon that uses what the operator publishes for its
// node. It has no client of EC2.
type operatorMode struct{ vpc }

func newOperatorMode(n *node) *operatorMode { return &operatorMode{vpc{node: n, onDemand: true}} }

func (m *operatorMode) newSource(context.Context) (source.Source, error) {
	c := nodenetworksupplier.Config{
		NodeName: m.cfg.NodeName, Kubeconfig: m.cfg.Kubeconfig, InstanceID: m.id.InstanceID,
		Datapath: m.networks, Cooling: m.cfg.CoolingPeriod, Store: enisource.Files{Dir: m.cfg.StateDir},
		Clock: m.clock, Logger: m.log, Tell: m.tell, Reported: nodenetworksupplier.CountReports(m.metrics.Registry),
	}
	if m.cfg.AutoCreateNodeNetwork {
		c.Spec = nodenetworksupplier.SpecOf(&m.cfg, m.id)
	}
	src, err := nodenetworksupplier.New(c)
	return m.withNodeLocal(src, err)
}
