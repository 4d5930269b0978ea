// Package operator is berth-operator: it owns the ENIs of all nodes of a
// cluster, by their NodeNetwork objects (design: docs/architecture.md).
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
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/cloud/aws"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/eni/fleet"
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
	api, err := newAPIServer(cfg.Kubeconfig)
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
		Cache:                         cache.Options{ByObject: nodenetwork.CacheByObject(), DefaultTransform: cache.TransformStripManagedFields()},
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

// assemble makes the parts that work for nodes.
func assemble(ctx context.Context, mgr manager.Manager, f *front, cfg config.Operator, log *slog.Logger) error {
	m := metrics.New()
	ec2, err := aws.New(ctx, aws.Options{
		Region: cfg.Region, EC2Endpoint: cfg.EC2Endpoint, IMDSEndpoint: cfg.IMDSEndpoint,
		Ceilings: cfg.EC2Limits, Observer: m, Logger: log, UserAgent: "berth-operator",
	})
	if err != nil {
		return err
	}
	fl, err := fleet.New(fleet.Config{
		Cluster: cfg.ClusterName, Cloud: ec2, Observer: m, Clock: clock.Real{}, Logger: log,
		ListingInterval: cfg.ListingInterval, ShrinkDelay: cfg.ShrinkDelay, Settle: cfg.SettleTime,
		CollectInterval: cfg.OrphanInterval, OrphanAge: cfg.OrphanAge,
	})
	if err != nil {
		return err
	}
	networks, err := nodenetwork.Setup(mgr, nodenetwork.Options{
		Fleet: fl, Clock: clock.Real{}, Logger: log,
		Grace: cfg.NodeGoneGrace, Settle: cfg.SettleTime, DemandServed: m.DemandServed,
	})
	if err != nil {
		return err
	}
	// A runnable that does not say otherwise runs while leading only.
	if err := mgr.Add(manager.RunnableFunc(fl.Run)); err != nil {
		return fmt.Errorf("adding the fleet: %w", err)
	}
	r := ctrlmetrics.Registry
	if err := errors.Join(m.Register(r), r.Register(metrics.State{Totals: networks.Totals, Subnets: fl.Subnets})); err != nil {
		return fmt.Errorf("registering metrics: %w", err)
	}
	f.watch(cachesFilled(mgr.GetCache()), answers("the fleet", func() {
		fl.Kick("") // no node's name; what it locks, all work for nodes needs
		fl.Subnets()
	}))
	return nil
}

// cachesFilled is a check whether all that is watched was read once; one that
// stands by is ready then to take over.
func cachesFilled(c cache.Cache) check {
	return func(ctx context.Context) error {
		for o := range nodenetwork.CacheByObject() {
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
