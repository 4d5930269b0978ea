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

// HandleMetrics serves /metrics. The reply is not compressed, since compression would need most of the memory.
func HandleMetrics(mux *http.ServeMux, metrics prometheus.Gatherer) {
	mux.Handle("GET /metrics", promhttp.HandlerFor(&paced{metrics: metrics}, promhttp.HandlerOpts{DisableCompression: true}))
}

const (
	// gatherPause is the minimum pause between two gatherings.
	gatherPause = 100 * time.Millisecond
	// gatherTimeout bounds a scrape. Prometheus waits 10 s by default.
	gatherTimeout = 8 * time.Second
)

var errGathering = errors.New("the metrics were not gathered in time")

// paced gathers metrics one at a time, with pauses. Scrapes that arrive meanwhile share the next
// gathering, so none gets values from before its request.
type paced struct {
	metrics prometheus.Gatherer

	mu   sync.Mutex // guards all below, held briefly
	next *gathering // not started yet
	last *gathering // started last
}

type gathering struct {
	done     chan struct{} // closed at the end
	ended    time.Time     // set before done is closed, as are the rest
	families []*dto.MetricFamily
	err      error
}

// Gather implements prometheus.Gatherer. The result is shared and must not be changed.
func (p *paced) Gather() ([]*dto.MetricFamily, error) {
	g := p.join()
	select {
	case <-g.done:
		return g.families, g.err
	case <-time.After(gatherTimeout):
		return nil, errGathering
	}
}

// join returns the next gathering, which has not started yet.
func (p *paced) join() *gathering {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next == nil {
		p.next = &gathering{done: make(chan struct{})}
		go p.run(p.next, p.last)
	}
	return p.next
}

// run gathers after the pause after the previous gathering.
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
