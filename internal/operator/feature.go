package operator

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/cloud/aws"
	"github.com/berthnet/berth/internal/cloud/pace"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/eni/fleet"
	"github.com/berthnet/berth/internal/operator/addresspool"
	"github.com/berthnet/berth/internal/operator/metrics"
	"github.com/berthnet/berth/internal/operator/nodenetwork"
	"github.com/berthnet/berth/internal/operator/watched"
)

// feature is one thing that the operator may work for.
type feature struct {
	name    string // in --ipam
	watches func() []*watched.Kind
	setup   func(context.Context, manager.Manager, environment) (part, error)
}

// environment is what all features are set up with.
type environment struct {
	cfg     config.Operator
	metrics *metrics.Metrics
	log     *slog.Logger
}

// part is a feature at work.
type part struct {
	alive  check                // fails once it hangs
	report func(*metrics.State) // tells where its gauges are read
}

// features are all there are. A new one is added here and in config.Operator.
var features = []feature{
	{config.IPAMENIOperator, nodenetwork.Watches, setupENIs},
	{config.IPAMPool, addresspool.Watches, setupPools},
}

// featuresOf are those that are configured.
func featuresOf(cfg config.Operator) []feature {
	return slices.DeleteFunc(slices.Clone(features), func(f feature) bool { return !slices.Contains(cfg.IPAM, f.name) })
}

// watches are the kinds that some features watch.
func watches(features []feature) ([]*watched.Kind, error) {
	var kinds []*watched.Kind
	for _, f := range features {
		kinds = append(kinds, f.watches()...)
	}
	return watched.Set(kinds...)
}

// setupENIs makes what works for nodes with ENIs.
func setupENIs(ctx context.Context, mgr manager.Manager, env environment) (part, error) {
	cfg, m, log := env.cfg, env.metrics, env.log
	client, err := aws.New(ctx, aws.Options{
		Region: cfg.Region, EC2Endpoint: cfg.EC2Endpoint, IMDSEndpoint: cfg.IMDSEndpoint, Logger: log, UserAgent: "berth-operator",
	})
	if err != nil {
		return part{}, err
	}
	ec2 := pace.Cloud(client, pace.Options{Ceilings: cfg.EC2Limits, Observer: m, Logger: log})
	fl, err := fleet.New(fleet.Config{
		Cluster: cfg.ClusterName, Cloud: ec2, Observer: m, Clock: clock.Real{}, Logger: log,
		ListingInterval: cfg.ListingInterval, ShrinkDelay: cfg.ShrinkDelay, Settle: cfg.SettleTime,
		CollectInterval: cfg.OrphanInterval, OrphanAge: cfg.OrphanAge,
	})
	if err != nil {
		return part{}, err
	}
	networks, err := nodenetwork.Setup(mgr, nodenetwork.Options{
		Fleet: fl, Clock: clock.Real{}, Logger: log,
		Identity: nodenetwork.Identity{
			NodeTag: cfg.InstanceNodeTag, ClusterTag: cfg.InstanceClusterTag.Key, ClusterValue: cfg.InstanceClusterTag.Value,
		},
		Grace: cfg.NodeGoneGrace, Settle: cfg.SettleTime, DemandServed: m.DemandServed,
	})
	if err != nil {
		return part{}, err
	}
	// A runnable that does not say otherwise runs while leading only.
	if err := mgr.Add(manager.RunnableFunc(fl.Run)); err != nil {
		return part{}, fmt.Errorf("adding the fleet: %w", err)
	}
	return part{
		alive: answers("the fleet", func() {
			fl.Kick("") // no node's name; what it locks, all work for nodes needs
			fl.Subnets()
		}),
		report: func(s *metrics.State) { s.Totals, s.Subnets = networks.Totals, fl.Subnets },
	}, nil
}

// setupPools makes what cuts address pools into blocks.
func setupPools(ctx context.Context, mgr manager.Manager, env environment) (part, error) {
	cfg, m := env.cfg, env.metrics
	pools, err := addresspool.Setup(ctx, mgr, addresspool.Options{
		Clock: clock.Real{}, Logger: env.log, Grace: cfg.BlockClaimGrace, DownAfter: cfg.DownNodeRelease,
		Sweep: cfg.OrphanInterval, RequestServed: m.BlockServed, MaxPods: cfg.NodeMaxPods, RequestRefused: m.BlockRefused,
	})
	if err != nil {
		return part{}, err
	}
	return part{
		alive:  answers("the book of blocks", func() { pools.Usage() }),
		report: func(s *metrics.State) { s.Pools = pools.Usage },
	}, nil
}
