package addresspool

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/metric"
)

var (
	famBlocks    = metric.New("berth_operator_pool_blocks", "gauge", "Blocks of a pool by state: max (all there are), allocated (nodes have them) or free.", "pool", "state")
	famAddresses = metric.New("berth_operator_pool_addresses", "gauge", "Addresses of one family of a pool by state, those of allocated blocks as allocated.", "pool", "state")
	famWaiting   = metric.New("berth_operator_pool_waiting_requests", "gauge", "Requests of nodes for which a pool has no block.", "pool")
	famServed    = metric.New("berth_operator_block_request_seconds", "histogram", "Time from a node's request for a block to its answer with one.")
	famRefused   = metric.New("berth_operator_block_requests_refused_total", "counter", "Requests for blocks that were refused because of what their node has or asks for already, by reason: NoPods, NodeQuota or TooManyRequests.", "reason")
)

// Families are the metrics, for the page that documents them.
var Families = []metric.Family{famBlocks, famAddresses, famWaiting, famServed, famRefused}

// Metrics count requests for blocks. They are safe for concurrent use.
type Metrics struct {
	served  *prometheus.HistogramVec
	refused *prometheus.CounterVec
}

// NewMetrics makes metrics that are not registered.
func NewMetrics() *Metrics {
	m := &Metrics{famServed.Histogram(metric.WaitBuckets), famRefused.Counter()}
	m.served.WithLabelValues() // so that it exists before the first request
	for _, reason := range []string{v1alpha1.ReasonNoPods, v1alpha1.ReasonNodeQuota, v1alpha1.ReasonTooManyRequests} {
		m.refused.WithLabelValues(reason) // so that an increase to 1 is one
	}
	return m
}

// Collectors are those to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.served, m.refused}
}

// RequestServed counts a node's request for a block that was answered after so long.
func (m *Metrics) RequestServed(after time.Duration) {
	m.served.WithLabelValues().Observe(after.Seconds())
}

// RequestRefused counts a request for a block that was refused because of what its node has.
func (m *Metrics) RequestRefused(reason string) { m.refused.WithLabelValues(reason).Inc() }

// Gauges are collected on each scrape: the usage of the pools.
func (c *Controller) Gauges() prometheus.Collector { return gauges(c.Usage) }

func gauges(usage func() []Usage) prometheus.Collector {
	return metric.Collector(func(emit func(metric.Family, float64, ...string)) {
		counts := func(f metric.Family, pool string, n v1alpha1.PoolCounts) {
			emit(f, float64(n.Total), pool, "max")
			emit(f, float64(n.Allocated), pool, "allocated")
			emit(f, float64(n.Free), pool, "free")
		}
		for _, u := range usage() {
			counts(famBlocks, u.Pool, u.Blocks)
			counts(famAddresses, u.Pool, u.Addresses)
			emit(famWaiting, float64(u.Waiting), u.Pool)
		}
	}, famBlocks, famAddresses, famWaiting)
}
