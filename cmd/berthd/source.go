package main

import (
	"context"

	"github.com/berthnet/berth/internal/cloud/aws"
	"github.com/berthnet/berth/internal/cloud/pace"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/source"
	enisource "github.com/berthnet/berth/internal/source/eni"
	"github.com/berthnet/berth/internal/source/nodenetwork"
	"github.com/berthnet/berth/internal/source/pool"
)

// supply is a source of addresses that looks again when links changed.
type supply interface {
	source.Source
	Kick()
}

// newSource makes the source of addresses for the mode: only node mode has a
// client of EC2.
func (n *node) newSource(ctx context.Context) (supply, error) {
	if n.cfg.IPAM == config.IPAMPool {
		return pool.New(pool.Config{
			NodeName: n.cfg.NodeName, Kubeconfig: n.cfg.Kubeconfig, Datapath: n.network, StateDir: n.cfg.StateDir,
			Cooling: n.cfg.CoolingPeriod, Watermark: n.cfg.BlockWatermark, ReleaseDelay: n.cfg.BlockReleaseDelay, ClaimInterval: n.cfg.BlockClaimInterval,
			Clock: n.clock, Logger: n.log, Observer: n.metrics.Pool,
		})
	}
	files := enisource.Files{Dir: n.cfg.StateDir}
	if n.cfg.IPAM == config.IPAMOperator {
		c := nodenetwork.Config{
			NodeName: n.cfg.NodeName, Kubeconfig: n.cfg.Kubeconfig, InstanceID: n.id.InstanceID,
			Datapath: n.network, Cooling: n.cfg.CoolingPeriod, Store: files,
			Clock: n.clock, Logger: n.log, Observer: n.metrics.NodeNetwork,
		}
		if n.cfg.AutoCreateNodeNetwork {
			c.Spec = nodenetwork.SpecOf(&n.cfg, n.id)
		}
		return nodenetwork.New(c)
	}
	if n.aws.Region == "" {
		n.aws.Region = n.id.Region
	}
	client, err := aws.New(ctx, n.aws)
	if err != nil {
		return nil, err
	}
	ec2 := pace.Cloud(client, pace.Options{Peers: true, Observer: n.metrics.Cloud, Logger: n.log})
	return enisource.New(enisource.Config{
		Identity: n.id, Cluster: n.cfg.ClusterName, Cloud: ec2, Datapath: n.network,
		Policy: n.cfg.Policy(), Cooling: n.cfg.CoolingPeriod,
		Subnets: n.cfg.Subnets, SubnetTags: n.cfg.SubnetTags, Groups: n.cfg.SecurityGroups, KeepENIs: !n.cfg.DeleteOnTermination,
		Store: files, Intents: files.Intents(), Clock: n.clock, Logger: n.log, Observer: n.metrics.Cloud.Reconciler(),
		ShrinkDelay: n.cfg.ShrinkDelay, ListingInterval: n.cfg.ListingInterval,
		SettleTime: n.cfg.SettleTime, OrphanAge: n.cfg.OrphanAge, OrphanInterval: n.cfg.OrphanInterval,
	})
}
