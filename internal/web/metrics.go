package web

import (
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
)

// HandleMetrics answers a scrape of /metrics. The answer is not compressed,
// which would cost more memory than all else of it.
func HandleMetrics(mux *http.ServeMux, metrics prometheus.Gatherer) {
	mux.Handle("GET /metrics", promhttp.HandlerFor(&paced{metrics: metrics}, promhttp.HandlerOpts{DisableCompression: true}))
}

const (
	// gatherPause is the least time from the end of one gathering to the next.
	gatherPause = 100 * time.Millisecond
	// gatherTimeout is how long a scrape waits: Prometheus waits 10 s by default.
	gatherTimeout = 8 * time.Second
)

var errGathering = errors.New("the metrics were not gathered in time")

// paced gathers metrics once at a time and with pauses, however many ask: those
// who ask while it waits or works share the next gathering, so that none gets
// what was true before it asked.
type paced struct {
	metrics prometheus.Gatherer

	mu   sync.Mutex // guards below, held for moments
	next *gathering // has not begun
	last *gathering // began last
}

type gathering struct {
	done     chan struct{} // closed at the end
	ended    time.Time     // set before done is closed, as are the rest
	families []*dto.MetricFamily
	err      error
}

// Gather implements prometheus.Gatherer. The answer is shared: nobody may change it.
func (p *paced) Gather() ([]*dto.MetricFamily, error) {
	g := p.join()
	select {
	case <-g.done:
		return g.families, g.err
	case <-time.After(gatherTimeout):
		return nil, errGathering
	}
}

// join returns the gathering that has not begun, one that it plans if there is none.
func (p *paced) join() *gathering {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next == nil {
		p.next = &gathering{done: make(chan struct{})}
		go p.run(p.next, p.last)
	}
	return p.next
}

// run gathers once the gathering before, if any, is over for long enough.
func (p *paced) run(g, before *gathering) {
	if before != nil {
		<-before.done
		<-time.After(time.Until(before.ended.Add(gatherPause)))
	}
	p.mu.Lock()
	p.next, p.last = nil, g
	p.mu.Unlock()
	g.families, g.err = p.metrics.Gather()
	g.ended = time.Now()
	close(g.done)
}
