package pool

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/source"
)

var (
	famPoolBlocks    = metric.New("berth_pool_blocks", "gauge", "Blocks of address pools that this node has, by pool and state: held, or draining (deleted, and kept for the pods that have addresses of it).", "pool", "state")
	famPoolAddresses = metric.New("berth_pool_addresses", "gauge", "Addresses of these blocks, a pair of a dual-stack pool counted once, by pool and state as in berth_addresses.", "pool", "state")
	famPoolWaiting   = metric.New("berth_pool_waiting_adds", "gauge", "ADDs that wait for an address of a pool.", "pool")
	famPoolExhausted = metric.New("berth_pool_exhausted", "gauge", "1 while this node requests a block of the pool and none is free, else 0.", "pool")
	famBlockTime     = metric.New("berth_block_request_duration_seconds", "histogram", "Time from requesting a block of a pool until this node had it.", "pool")
	famAPICalls      = metric.New("berth_kubernetes_calls_total", "counter", "Requests to the Kubernetes API about blocks, by call (create-request, delete-request, look-for-block, return-block, free-block or renew-block) and result: success or error.", "call", "result")
	famAPITime       = metric.New("berth_kubernetes_call_duration_seconds", "histogram", "Time that these requests took.", "call")
)

const conditionRouted = "BlocksRouted"

// Reference is what this source adds to the page of metrics.
var Reference = source.Reference{
	Families:   []metric.Family{famPoolBlocks, famPoolAddresses, famPoolWaiting, famPoolExhausted, famBlockTime, famAPICalls, famAPITime},
	Conditions: [][2]string{{conditionRouted, "with address pools: every block of the node could be routed"}},
}

// Metrics implements Observer.
type Metrics struct {
	requests *prometheus.HistogramVec
	calls    *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// NewMetrics makes and registers them.
func NewMetrics(to prometheus.Registerer) Metrics {
	m := Metrics{famBlockTime.Histogram(metric.CallBuckets), famAPICalls.Counter(), famAPITime.Histogram(metric.CallBuckets)}
	to.MustRegister(m.requests, m.calls, m.duration)
	return m
}

// Asked counts one request to the API server.
func (m Metrics) Asked(what, result string, took time.Duration) {
	m.calls.WithLabelValues(what, result).Inc()
	m.duration.WithLabelValues(what).Observe(took.Seconds())
}

// Supplied counts one block that was requested and arrived.
func (m Metrics) Supplied(pool string, took time.Duration) {
	m.requests.WithLabelValues(pool).Observe(took.Seconds())
}
