// Package operator is berth-operator: it owns the ENIs of all nodes of a
// cluster, by their NodeNetwork objects, cuts address pools into blocks for
// them, or has the ports of VPCs made that pods have for NICs (design:
// docs/architecture.md).
//
//	operator.go  puts the parts together and runs them
//	feature.go   what it may work for: each feature's metrics, watches and set-up
//	metrics.go   the page of all metrics
//	reach.go     waiting for the Kubernetes API
//	lease.go     leading, of several operators
//	log.go       what of controller-runtime's log is no error
//	serve.go     metrics and probes
package operator

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/ec2/cloud/aws"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/internal/operator/watched"
	"github.com/berthnet/berth/internal/version"
	"github.com/berthnet/berth/internal/vpcport"
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
	logger := logr.FromSlogHandler(orderly{log.Handler(), ctx})
	ctrl.SetLogger(logger)
	klog.SetLogger(logger) // client-go's
	return RunWith(ctx, cfg, log, Dependencies{
		Metrics: ctrlmetrics.Registry,
		Cloud:   func(ctx context.Context, o aws.Options) (pace.Calls, error) { return aws.New(ctx, o) },
	})
}

// Dependencies are what an operator needs outside the program. Run uses the machine's; a
// test that runs operators inside its own process injects others. The settings name the
// Kubernetes API server.
type Dependencies struct {
	Metrics ctrlmetrics.RegistererGatherer
	// Cloud is the client of EC2.
	Cloud func(ctx context.Context, o aws.Options) (pace.Calls, error)
	// VPC is the provider of all VPCs; nil: each is reached as its spec says.
	VPC vpcport.Provider
	// Several tells that the process runs more than one operator.
	Several bool
}

// RunWith is Run with other dependencies than the machine's.
func RunWith(ctx context.Context, cfg config.Operator, log *slog.Logger, deps Dependencies) error {
	log.Info("starting", "version", version.String(), "cluster", cfg.ClusterName)
	if len(cfg.Unknown) > 0 {
		log.Warn("environment variables that begin with BERTH_ and mean nothing: typing errors?", "names", cfg.Unknown)
	}
	f, err := newFront(cfg, deps.Metrics, log)
	if err != nil {
		return err
	}
	defer f.close()
	features := newFeatures()
	kinds, err := watches(configured(features, cfg))
	if err != nil {
		return err
	}
	api, err := newAPIServer(cfg.Kubeconfig, kinds)
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
	mgr, err := newManager(ctx, api, kinds, cfg, log, deps)
	if err != nil {
		return err
	}
	if err := assemble(ctx, mgr, f, features, kinds, environment{cfg, log, deps, &openedEC2{}}); err != nil {
		return err
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("running: %w", err)
	}
	log.Info("ended")
	return nil
}

// newManager connects the parts to the Kubernetes API.
func newManager(ctx context.Context, api *apiServer, kinds []*watched.Kind, cfg config.Operator, log *slog.Logger, deps Dependencies) (_ manager.Manager, err error) {
	grace, warmup := endTimeout, cfg.LeaderElect
	o := manager.Options{
		Scheme:         api.scheme,
		MapperProvider: api.mapping,
		Cache: cache.Options{
			ByObject: watched.ByObject(kinds), DefaultTransform: cache.TransformStripManagedFields(),
			DefaultWatchErrorHandler: newUnwatched(log, api.clock).handle,
		},
		Metrics:                       metricsserver.Options{BindAddress: "0"}, // front serves them
		HealthProbeBindAddress:        "0",
		LeaderElection:                cfg.LeaderElect,
		LeaderElectionID:              LeaseName, // also its name in metrics
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 &cfg.LeaseDuration,
		RenewDeadline:                 &cfg.RenewDeadline,
		RetryPeriod:                   &cfg.RetryPeriod,
		GracefulShutdownTimeout:       &grace,
		// One that stands by, and so only with leader election, has its caches filled when it takes over.
		Controller: ctrlconfig.Controller{EnableWarmup: &warmup, SkipNameValidation: &deps.Several},
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

// assemble makes the parts of the features that the operator works for.
func assemble(ctx context.Context, mgr manager.Manager, f *front, features []feature, kinds []*watched.Kind, env environment) error {
	var alive []check
	var collectors []prometheus.Collector
	for _, ft := range features {
		collectors = append(collectors, ft.counters...)
	}
	for _, ft := range configured(features, env.cfg) {
		p, err := ft.setup(ctx, mgr, env)
		if err != nil {
			return err
		}
		alive, collectors = append(alive, p.alive), append(collectors, p.gauges...)
	}
	for _, c := range collectors {
		if err := env.deps.Metrics.Register(c); err != nil {
			return fmt.Errorf("registering metrics: %w", err)
		}
	}
	filled := cachesFilled(mgr.GetCache(), kinds)
	f.watch(filled, all(alive))
	return mgr.Add(watcher(func(ctx context.Context) error {
		_ = filled(ctx) // it says what is not read yet, and is asked again
		return nil
	}))
}

// watcher is what begins when a process starts, whether it leads or not: so what is only
// read is in memory before it is asked for.
type watcher func(context.Context) error

func (w watcher) Start(ctx context.Context) error { return w(ctx) }
func (watcher) NeedLeaderElection() bool          { return false }

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
// stands by is ready then to take over. It begins to watch what is not watched yet.
func cachesFilled(c cache.Cache, kinds []*watched.Kind) check {
	return func(ctx context.Context) error {
		var missing error
		for _, k := range kinds {
			informer, err := c.GetInformer(ctx, k.Object, cache.BlockUntilSynced(false))
			if err != nil {
				return fmt.Errorf("starting: watching %T: %w", k.Object, err)
			}
			if !informer.HasSynced() && missing == nil {
				missing = fmt.Errorf("starting: %T objects are not read yet", k.Object)
			}
		}
		return missing
	}
}
