package pool

import (
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/berthnet/berth/deploy"
	"github.com/berthnet/berth/internal/operator/addresspool"
	"github.com/berthnet/berth/test/harness"
	"github.com/berthnet/berth/test/harness/controllers"
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
	t := o.m.T
	t.Helper()
	cfg := harness.OperatorConfig(t, deploy.PoolMode)
	if o.blocks != nil {
		cfg.Wrap(harness.Through(o.hold))
	}
	mgr, err := controllers.Manager(cfg, addresspool.Watches())
	harness.OK(t, err)
	_, err = addresspool.Setup(t.Context(), mgr, addresspool.Options{
		Logger: sourcetest.Logger(t.Output()), MaxPods: 1024, RequestServed: func(time.Duration) { o.served.Add(1) },
	})
	harness.OK(t, err)
	o.stop = controllers.Run(t, mgr)
}

// hold keeps back requests for blocks that are not to be made.
func (o *operator) hold(r *http.Request, next http.RoundTripper) (*http.Response, error) {
	if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/addressblocks") {
		select {
		case <-o.blocks:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	return next.RoundTrip(r)
}
