// Package operator is berth-operator: depending on its settings, it manages the ENIs of all nodes of a cluster
// through their NodeNetwork objects, cuts address pools into blocks for nodes, creates the VPC ports of pods'
// NICs, and runs egress gateways (design: docs/contribute/architecture.md).
//
//	operator.go  assembling and running the parts
//	feature.go   the features: their metrics, watches and setup
//	reach.go     waiting for the Kubernetes API, and kinds that can no longer be watched
//	lease.go     leader election
//	serve.go     metrics and probes
//	installed.go settings that differ from those that the chart installed
package operator

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
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

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/config"
	"github.com/berthnet/berth/internal/ec2/cloud/aws"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/operator/watched"
	"github.com/berthnet/berth/internal/version"
	"github.com/berthnet/berth/internal/vpcport"
)

// endTimeout is how long calls in flight may take after the operator was told to stop. It is less than the 30 s
// that Kubernetes gives a pod, because the Lease is released afterwards.
const endTimeout = 25 * time.Second

// Run works until ctx ends, lets calls in flight finish, and releases the Lease. It returns an error if it cannot
// start or has lost the Lease: the process must then exit, as EC2 calls may still be in flight. It may be called
// only once per process, as it sets the process's logger and uses its global metrics.
func Run(ctx context.Context, cfg config.Operator, log *slog.Logger) error {
	logger := logr.FromSlogHandler(quietStop{log.Handler(), ctx})
	ctrl.SetLogger(logger)
	klog.SetLogger(logger) // the logger of client-go
	return RunWith(ctx, cfg, log, Dependencies{
		Metrics: ctrlmetrics.Registry,
		Cloud:   func(ctx context.Context, o aws.Options) (pace.Calls, error) { return aws.New(ctx, o) },
	})
}

// Dependencies are what an operator uses outside the program, except the Kubernetes API server, which is set in
// the settings. Tests that run operators in their own process inject fakes.
type Dependencies struct {
	Metrics ctrlmetrics.RegistererGatherer
	// Cloud is the client of EC2.
	Cloud func(ctx context.Context, o aws.Options) (pace.Calls, error)
	// VPC is the provider of all VPCs; nil: each VPC is reached as its spec says.
	VPC vpcport.Provider
	// Several allows more than one operator in a process.
	Several bool
}

// RunWith works like Run with injected dependencies.
func RunWith(ctx context.Context, cfg config.Operator, log *slog.Logger, deps Dependencies) error {
	log.Info("starting", "version", version.String(), "cluster", cfg.ClusterName)
	if len(cfg.Unknown) > 0 {
		log.Warn("ignoring unknown environment variables with the prefix BERTH_", "names", cfg.Unknown)
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
		log.Info("stopped")
		return nil
	}
	mgr, err := newManager(ctx, api, kinds, cfg, log, deps)
	if err != nil {
		return err
	}
	settings := &installed{drift: cfg.Drift, dir: allowedDir, clock: clock.Real{}, log: log}
	if err := assemble(ctx, mgr, f, features, kinds, environment{cfg, log, deps, &openedEC2{}, settings}); err != nil {
		return err
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("run: %w", err)
	}
	log.Info("stopped")
	return nil
}

// newManager creates the manager that connects the parts to the Kubernetes API.
func newManager(ctx context.Context, api *apiServer, kinds []*watched.Kind, cfg config.Operator, log *slog.Logger, deps Dependencies) (_ manager.Manager, err error) {
	grace, warmup := endTimeout, cfg.LeaderElect
	o := manager.Options{
		Scheme:         api.scheme,
		MapperProvider: api.mapping,
		Cache: cache.Options{
			ByObject: watched.ByObject(kinds), DefaultTransform: cache.TransformStripManagedFields(),
			DefaultWatchErrorHandler: newUnwatched(log, api.clock).handle,
		},
		Metrics:                       metricsserver.Options{BindAddress: "0"}, // metrics are served by front
		HealthProbeBindAddress:        "0",
		LeaderElection:                cfg.LeaderElect,
		LeaderElectionID:              LeaseName, // also the name in metrics
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 &cfg.LeaseDuration,
		RenewDeadline:                 &cfg.RenewDeadline,
		RetryPeriod:                   &cfg.RetryPeriod,
		GracefulShutdownTimeout:       &grace,
		// With leader election, a standby fills its caches before it takes over.
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

// assemble sets up the enabled features.
func assemble(ctx context.Context, mgr manager.Manager, f *front, features []feature, kinds []*watched.Kind, env environment) error {
	var alive []check
	collectors := []prometheus.Collector{env.installed.gauge()}
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
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	if err := mgr.Add(watcher(env.installed.run)); err != nil {
		return err
	}
	filled := cachesFilled(mgr.GetCache(), kinds)
	f.watch(filled, all(alive))
	return mgr.Add(watcher(func(ctx context.Context) error {
		_ = filled(ctx) // starts the watches; the error only says that they are not synced yet
		return nil
	}))
}

// watcher runs as soon as the process starts, whether it leads or not, so that caches are filled before they are
// needed.
type watcher func(context.Context) error

func (w watcher) Start(ctx context.Context) error { return w(ctx) }
func (watcher) NeedLeaderElection() bool          { return false }

// all combines checks; it fails with the first one that fails.
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

// cachesFilled is a check that all watches are synced, so that a standby is ready to take over. It starts watches
// that have not been started yet.
func cachesFilled(c cache.Cache, kinds []*watched.Kind) check {
	return func(ctx context.Context) error {
		var missing error
		for _, k := range kinds {
			informer, err := c.GetInformer(ctx, k.Object, cache.BlockUntilSynced(false))
			if err != nil {
				return fmt.Errorf("starting: watching %T: %w", k.Object, err)
			}
			if !informer.HasSynced() && missing == nil {
				missing = fmt.Errorf("starting: the cache of %T is not synced yet", k.Object)
			}
		}
		return missing
	}
}

// WriteMetricsReference writes the metrics of all features as the page docs/reference/operator-metrics.md.
func WriteMetricsReference(w io.Writer) error {
	var b strings.Builder
	b.WriteString(`# Metrics of berth-operator

<!-- Generated from internal/operator by "make generate". -->

Served at /metrics on --metrics-address in the Prometheus text format, with
those of the Go runtime, the process and controller-runtime
(controller_runtime_*, workqueue_*, rest_client_*, leader_election_*). Durations
are in seconds. Only the leading operator has values of nodes and subnets: those of
a standby are 0 or missing.

`)
	all := []metric.Family{famInstalled}
	for _, f := range newFeatures() {
		all = append(all, f.families...)
	}
	metric.WriteTable(&b, all)
	_, err := io.WriteString(w, b.String())
	return err
}
