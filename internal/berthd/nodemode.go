package berthd

import (
	"context"

	"github.com/berthnet/berth/internal/cloud/aws"
	"github.com/berthnet/berth/internal/cloud/pace"
	"github.com/berthnet/berth/internal/source/eni"
)

// nodeMode is that of a daemon that calls EC2 for its node.
type nodeMode struct{ vpc }

func (m *nodeMode) newSource(ctx context.Context) (supply, error) {
	if m.aws.Region == "" {
		m.aws.Region = m.id.Region
	}
	client, err := aws.New(ctx, m.aws)
	if err != nil {
		return nil, err
	}
	metrics := eni.NewMetrics(m.metrics.Registry)
	files := eni.Files{Dir: m.cfg.StateDir}
	return eni.New(eni.Config{
		Identity: m.id, Cluster: m.cfg.ClusterName, Datapath: m.datapath,
		Cloud:  pace.Cloud(client, pace.Options{Peers: true, Observer: metrics, Logger: m.log}),
		Policy: m.cfg.Policy(), Cooling: m.cfg.CoolingPeriod,
		Subnets: m.cfg.Subnets, SubnetTags: m.cfg.SubnetTags, Groups: m.cfg.SecurityGroups, KeepENIs: !m.cfg.DeleteOnTermination,
		Store: files, Intents: files.Intents(), Clock: m.clock, Logger: m.log, Observer: metrics.Reconciler(),
		ShrinkDelay: m.cfg.ShrinkDelay, ListingInterval: m.cfg.ListingInterval,
		SettleTime: m.cfg.SettleTime, OrphanAge: m.cfg.OrphanAge, OrphanInterval: m.cfg.OrphanInterval,
	})
}
