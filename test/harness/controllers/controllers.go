// Package controllers runs controllers of berth-operator in a test's own process,
// as the operator does: with its cache, and under its service account. Tests only.
package controllers

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/operator/watched"
)

// Manager is an operator that leads, and keeps some kinds in memory.
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

// Run runs a manager until end, which returns once it has ended, or the end of
// the test.
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
