// Package controllers is the harness for controllers of berth-operator: it runs them in a
// test's own process against a real API server, as the operator does, with its cache and under
// its service account. Tests only.
//
//	controllers.go  running controllers, and processes of them that failpoints kill
//	await.go        waiting for objects, conditions and Events
//	act.go          what people, the scheduler, kubelets and daemons do
//	webhook.go      an admission webhook outside of the cluster
package controllers

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/failpoint"
	"github.com/berthnet/berth/internal/operator/watched"
	"github.com/berthnet/berth/lab/run/kube"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/crashsource"
)

// Setup adds controllers to a manager.
type Setup func(ctx context.Context, mgr manager.Manager) error

func init() { ctrllog.SetLogger(logr.Discard()) }

// Manager is an operator that leads, with a cache of some kinds.
func Manager(cfg *rest.Config, kinds []*watched.Kind) (manager.Manager, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	return manager.New(cfg, ctrl.Options{
		Scheme: scheme, Cache: cache.Options{ByObject: watched.ByObject(kinds)},
		Metrics: metricsserver.Options{BindAddress: "0"}, Logger: logr.Discard(),
	})
}

// Start runs controllers that reach the API server by cfg, each request through some transports, until
// end is called or the test ends. end returns once they have stopped.
func Start(t *testing.T, cfg *rest.Config, kinds []*watched.Kind, setup Setup, through ...transport.WrapperFunc) (end func()) {
	t.Helper()
	cfg = rest.CopyConfig(cfg)
	for _, wrap := range through {
		cfg.Wrap(wrap)
	}
	mgr, err := Manager(cfg, kinds)
	harness.OK(t, err)
	harness.OK(t, setup(t.Context(), mgr))
	return Run(t, mgr)
}

// Run runs a manager until end is called or the test ends.
func Run(t *testing.T, mgr manager.Manager) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("controllers: %v", err)
		}
	})
	t.Cleanup(end)
	return end
}

// Main is TestMain of a package whose controllers Killed starts in processes of their own, with
// a log on standard error. The control plane is that of start, such as harness.Kube.
//
//	func TestMain(m *testing.M) { os.Exit(controllers.Main(m, harness.Kube, Watches(), setup)) }
func Main(m *testing.M, start func(run func() int, prepare ...func() error) int, kinds []*watched.Kind, setup func(context.Context, manager.Manager, *slog.Logger) error) int {
	return crashsource.Main(func() int { return start(m.Run) }, func(kubeconfig string) error {
		cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		if err != nil {
			return err
		}
		cfg.QPS = -1 // a file cannot say so
		mgr, err := Manager(cfg, kinds)
		if err != nil {
			return err
		}
		ctx := context.Background()
		if err := setup(ctx, mgr, Logger(os.Stderr)); err != nil {
			return err
		}
		return errors.Join(failpoint.Err(), mgr.Start(ctx))
	})
}

// Logger writes everything to w.
func Logger(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// Killed starts the controllers of Main in a process that failpoints kill, and again without
// failpoints each time it has died, until the test ends. It returns how often it died.
func Killed(t *testing.T, cfg *rest.Config, failpoints string) (deaths func() int) {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	harness.OK(t, kube.WriteKubeconfig(kubeconfig, cfg))
	return crashsource.Restarted(t, kubeconfig, failpoints)
}

// Failpoints are the registered ones with a prefix, at least a number of them.
func Failpoints(t *testing.T, prefix string, least int) (names []string) {
	t.Helper()
	for _, name := range failpoint.Names() {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	if len(names) < least {
		t.Fatalf("the failpoints %s are %v, want %d at least", prefix, names, least)
	}
	return names
}
