// Package operator is berth-operator: it owns the ENIs of all nodes of a
// cluster, by their NodeNetwork objects, or cuts address pools into blocks for
// them, or both (design: docs/architecture.md).
//
//	operator.go  puts the parts together and runs them
//	reach.go     waiting for the Kubernetes API
//	lease.go     leading, of several operators
//	log.go       what of controller-runtime's log is no error
//	serve.go     metrics and probes
package operator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/cloud/aws"
	"github.com/berthnet/berth/internal/cloud/pace"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/eni/fleet"
	"github.com/berthnet/berth/internal/operator/addresspool"
	"github.com/berthnet/berth/internal/operator/metrics"
	"github.com/berthnet/berth/internal/operator/nodenetwork"
	"github.com/berthnet/berth/internal/version"
)

// endTimeout is how long calls under way may take once the operator was asked
// to end; less than the 30 s that Kubernetes gives a pod, as the Lease is
// released after it.
const endTimeout = 25 * time.Second

// Run works until ctx ends, lets calls under way finish, and releases the
// Lease. It returns an error when it cannot start, or lost the Lease: the
// process must end then, as EC2 calls may still be under way. It may be called
// once a process, whose logs and metrics it takes for its own.
func Run(ctx context.Context, cfg config.Operator, log *slog.Logger) error {
	log.Info("starting", "version", version.String(), "cluster", cfg.ClusterName)
	if len(cfg.Unknown) > 0 {
		log.Warn("environment variables that begin with BERTH_ and mean nothing: typing errors?", "names", cfg.Unknown)
	}
	logger := logr.FromSlogHandler(orderly{log.Handler(), ctx})
	ctrl.SetLogger(logger)
	klog.SetLogger(logger) // client-go's

	f, err := newFront(cfg, ctrlmetrics.Registry, log)
	if err != nil {
		return err
	}
	defer f.close()
	api, err := newAPIServer(cfg)
	if err != nil {
		return err
	}
	if err := api.await(ctx, log, f.wait); err != nil {
		return err
	}
	if ctx.Err() != nil {
		log.Info("ended")
		return nil
	}
	mgr, err := newManager(ctx, api, cfg, log)
	if err != nil {
		return err
	}
	if err := assemble(ctx, mgr, f, cfg, log); err != nil {
		return err
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("running: %w", err)
	}
	log.Info("ended")
	return nil
}

// newManager connects the parts to the Kubernetes API.
func newManager(ctx context.Context, api *apiServer, cfg config.Operator, log *slog.Logger) (_ manager.Manager, err error) {
	grace, warmup := endTimeout, true
	o := manager.Options{
		Scheme:                        api.scheme,
		MapperProvider:                api.kinds,
		Cache:                         cache.Options{ByObject: watched(cfg), DefaultTransform: cache.TransformStripManagedFields()},
		Metrics:                       metricsserver.Options{BindAddress: "0"}, // front serves them
		HealthProbeBindAddress:        "0",
		LeaderElection:                cfg.LeaderElect,
		LeaderElectionID:              LeaseName, // also its name in metrics
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 &cfg.LeaseDuration,
		RenewDeadline:                 &cfg.RenewDeadline,
		RetryPeriod:                   &cfg.RetryPeriod,
		GracefulShutdownTimeout:       &grace,
		// One that stands by has its caches filled when it takes over.
		Controller: ctrlconfig.Controller{EnableWarmup: &warmup},
	}
	if cfg.LeaderElect {
		if o.LeaderElectionResourceLockInterface, err = newLease(ctx, api.config, cfg, log); err != nil {
			return nil, err
		}
	}
	mgr, err := manager.New(api.config, o)
	if err != nil {
		return nil, fmt.Errorf("connecting to the Kubernetes API: %w", err)
	}
	return mgr, nil
}

// watched is what is kept in memory of each kind for what the operator works for.
func watched(cfg config.Operator) map[client.Object]cache.ByObject {
	kinds := map[string]map[client.Object]cache.ByObject{}
	if slices.Contains(cfg.IPAM, config.IPAMOperator) {
		kinds[config.IPAMOperator] = nodenetwork.CacheByObject()
	}
	if slices.Contains(cfg.IPAM, config.IPAMPool) {
		kinds[config.IPAMPool] = addresspool.CacheByObject()
	}
	all := map[reflect.Type]client.Object{}
	out := map[client.Object]cache.ByObject{}
	for _, ipam := range []string{config.IPAMOperator, config.IPAMPool} { // of a Node the second keeps what both need
		for o, by := range kinds[ipam] {
			if before, ok := all[reflect.TypeOf(o)]; ok {
				delete(out, before)
			}
			all[reflect.TypeOf(o)], out[o] = o, by
		}
	}
	return out
}

// assemble makes the parts that the operator works with.
func assemble(ctx context.Context, mgr manager.Manager, f *front, cfg config.Operator, log *slog.Logger) error {
	m := metrics.New()
	state := metrics.State{}
	var alive []check
	if slices.Contains(cfg.IPAM, config.IPAMOperator) {
		fl, networks, err := assembleENIs(ctx, mgr, cfg, m, log)
		if err != nil {
			return err
		}
		state.Totals, state.Subnets = networks.Totals, fl.Subnets
		alive = append(alive, answers("the fleet", func() {
			fl.Kick("") // no node's name; what it locks, all work for nodes needs
			fl.Subnets()
		}))
	}
	if slices.Contains(cfg.IPAM, config.IPAMPool) {
		pools, err := addresspool.Setup(ctx, mgr, addresspool.Options{
			Clock: clock.Real{}, Logger: log, Grace: cfg.BlockClaimGrace, DownAfter: cfg.DownNodeRelease,
			Sweep: cfg.OrphanInterval, RequestServed: m.BlockServed, MaxPods: cfg.NodeMaxPods, RequestRefused: m.BlockRefused,
		})
		if err != nil {
			return err
		}
		state.Pools = pools.Usage
		alive = append(alive, answers("the book of blocks", func() { pools.Usage() }))
	}
	r := ctrlmetrics.Registry
	if err := errors.Join(m.Register(r), r.Register(state)); err != nil {
		return fmt.Errorf("registering metrics: %w", err)
	}
	f.watch(cachesFilled(mgr.GetCache(), watched(cfg)), all(alive))
	return nil
}

// assembleENIs makes the parts that work for nodes with ENIs.
func assembleENIs(ctx context.Context, mgr manager.Manager, cfg config.Operator, m *metrics.Metrics, log *slog.Logger) (*fleet.Fleet, *nodenetwork.Controller, error) {
	client, err := aws.New(ctx, aws.Options{
		Region: cfg.Region, EC2Endpoint: cfg.EC2Endpoint, IMDSEndpoint: cfg.IMDSEndpoint, Logger: log, UserAgent: "berth-operator",
	})
	if err != nil {
		return nil, nil, err
	}
	ec2 := pace.Cloud(client, pace.Options{Ceilings: cfg.EC2Limits, Observer: m, Logger: log})
	fl, err := fleet.New(fleet.Config{
		Cluster: cfg.ClusterName, Cloud: ec2, Observer: m, Clock: clock.Real{}, Logger: log,
		ListingInterval: cfg.ListingInterval, ShrinkDelay: cfg.ShrinkDelay, Settle: cfg.SettleTime,
		CollectInterval: cfg.OrphanInterval, OrphanAge: cfg.OrphanAge,
	})
	if err != nil {
		return nil, nil, err
	}
	networks, err := nodenetwork.Setup(mgr, nodenetwork.Options{
		Fleet: fl, Clock: clock.Real{}, Logger: log,
		Identity: nodenetwork.Identity{
			NodeTag: cfg.InstanceNodeTag, ClusterTag: cfg.InstanceClusterTag.Key, ClusterValue: cfg.InstanceClusterTag.Value,
		},
		Grace: cfg.NodeGoneGrace, Settle: cfg.SettleTime, DemandServed: m.DemandServed,
	})
	if err != nil {
		return nil, nil, err
	}
	// A runnable that does not say otherwise runs while leading only.
	if err := mgr.Add(manager.RunnableFunc(fl.Run)); err != nil {
		return nil, nil, fmt.Errorf("adding the fleet: %w", err)
	}
	return fl, networks, nil
}

// all is a check that fails with the first of some that does.
func all(checks []check) check {
	return func(ctx context.Context) error {
		for _, c := range checks {
			if err := c(ctx); err != nil {
				return err
			}
		}
		return nil
	}
}

// cachesFilled is a check whether all that is watched was read once; one that
// stands by is ready then to take over.
func cachesFilled(c cache.Cache, kinds map[client.Object]cache.ByObject) check {
	return func(ctx context.Context) error {
		for o := range kinds {
			informer, err := c.GetInformer(ctx, o, cache.BlockUntilSynced(false))
			if err != nil {
				return fmt.Errorf("starting: watching %T: %w", o, err)
			}
			if !informer.HasSynced() {
				return fmt.Errorf("starting: %T objects are not read yet", o)
			}
		}
		return nil
	}
}
