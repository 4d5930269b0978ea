package pool

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/berthnet/berth/internal/operator/addresspool"
	"github.com/berthnet/berth/internal/operator/watched"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/sourcenode"
	"github.com/berthnet/berth/test/harness/sourcetest"
)

// operator is berth-operator's controllers, with the rights that they have in a
// cluster, and what stops them from making blocks.
type operator struct {
	m      *machine
	served atomic.Int64  // requests that have got a block
	blocks chan struct{} // of limited: has one for each block that may be made
	stop   func()
}

// startOperator answers requests until the test ends, or stop is called.
func (m *machine) startOperator() *operator {
	m.T.Helper()
	o := &operator{m: m}
	o.start()
	return o
}

// startLimitedOperator makes so many blocks, and then none.
func (m *machine) startLimitedOperator(blocks int) *operator {
	m.T.Helper()
	o := &operator{m: m, blocks: make(chan struct{}, blocks)}
	for range blocks {
		o.blocks <- struct{}{}
	}
	o.start()
	return o
}

func (o *operator) start() {
	o.m.T.Helper()
	cfg := sourcenode.Config(o.m.T, "berth-operator", nodeID)
	if o.blocks != nil {
		cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return limited{o.blocks, next} })
	}
	ctx, cancel := context.WithCancel(context.Background())
	mgr, err := o.manager(ctx, cfg)
	harness.OK(o.m.T, err)
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	o.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			o.m.T.Errorf("operator: %v", err)
		}
	})
	o.m.T.Cleanup(o.stop)
}

func (o *operator) manager(ctx context.Context, cfg *rest.Config) (ctrl.Manager, error) {
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme: o.m.API.Scheme(), Cache: cache.Options{ByObject: watched.ByObject(addresspool.Watches())},
		Metrics: metricsserver.Options{BindAddress: "0"}, Logger: logr.Discard(),
	})
	if err != nil {
		return nil, err
	}
	_, err = addresspool.Setup(ctx, mgr, addresspool.Options{
		Logger: sourcetest.Logger(o.m.T.Output()), MaxPods: 1024, RequestServed: func(time.Duration) { o.served.Add(1) },
	})
	return mgr, err
}

// limited holds requests for which there is nothing more in blocks.
type limited struct {
	blocks chan struct{}
	next   http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (l limited) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/addressblocks") {
		select {
		case <-l.blocks:
		case <-r.Context().Done():
			return nil, errors.New("the operator makes no more blocks")
		}
	}
	return l.next.RoundTrip(r)
}
