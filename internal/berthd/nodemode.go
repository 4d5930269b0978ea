package berthd

import (
	"context"

	"github.com/berthnet/berth/internal/cloud/aws"
	"github.com/berthnet/berth/internal/cloud/pace"
	reconciler "github.com/berthnet/berth/internal/eni"
	"github.com/berthnet/berth/internal/source"
	"github.com/berthnet/berth/internal/source/eni"
)

// nodeMode is that of a daemon that calls EC2 for its node.
type nodeMode struct{ vpc }

func (m *nodeMode) newSource(ctx context.Context) (source.Source, error) {
	if m.aws.Region == "" {
		m.aws.Region = m.id.Region
	}
	client, err := aws.New(ctx, m.aws)
	if err != nil {
		return nil, err
	}
	metrics := eni.NewMetrics(m.metrics.Registry)
	files := eni.Files{Dir: m.cfg.StateDir}
	src, err := eni.New(eni.Options{
		InstanceID: m.id.InstanceID, Datapath: m.networks, Cooling: m.cfg.CoolingPeriod, Store: files, Clock: m.clock, Logger: m.log,
	}, reconciler.Config{
		Settings: reconciler.Settings{
			InstanceType: m.id.InstanceType, Policy: m.cfg.Policy(),
			SubnetIDs: m.cfg.Subnets, SubnetTags: m.cfg.SubnetTags, Groups: m.cfg.SecurityGroups, KeepENIs: !m.cfg.DeleteOnTermination,
		},
		Cluster: m.cfg.ClusterName, Cloud: pace.Cloud(client, pace.Options{Peers: true, Observer: metrics, Logger: m.log}),
		Intents: files.Intents(), Observer: metrics.Reconciler(),
		ShrinkDelay: m.cfg.ShrinkDelay, ListingInterval: m.cfg.ListingInterval,
		Settle: m.cfg.SettleTime, OrphanAge: m.cfg.OrphanAge, CollectInterval: m.cfg.OrphanInterval,
	})
	return m.withNodeLocal(src, err)
}
