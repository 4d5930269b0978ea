package daemon

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/internal/source"
)

// PoolMetrics count what the source of pool addresses asks the Kubernetes API
// for. They observe it.
type PoolMetrics struct {
	requests *prometheus.HistogramVec
	calls    *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

func newPoolMetrics() PoolMetrics {
	return PoolMetrics{requests: famBlockTime.Histogram(callBuckets), calls: famAPICalls.Counter(), duration: famAPITime.Histogram(callBuckets)}
}

// Asked counts one request to the API server.
func (m PoolMetrics) Asked(what, result string, took time.Duration) {
	m.calls.WithLabelValues(what, result).Inc()
	m.duration.WithLabelValues(what).Observe(took.Seconds())
}

// Supplied counts one block that was asked for and came.
func (m PoolMetrics) Supplied(pool string, took time.Duration) {
	m.requests.WithLabelValues(pool).Observe(took.Seconds())
}

var (
	poolBlocksDesc    = famPoolBlocks.Desc()
	poolAddressesDesc = famPoolAddresses.Desc()
	poolWaitingDesc   = famPoolWaiting.Desc()
	poolExhaustedDesc = famPoolExhausted.Desc()
	poolDescs         = []*prometheus.Desc{poolBlocksDesc, poolAddressesDesc, poolWaitingDesc, poolExhaustedDesc}
)

// countAddresses counts by state: from the pools where there are some, as large
// blocks do not list every address.
func countAddresses(snap source.Snapshot) map[source.State]int {
	count := map[source.State]int{source.Used: 0, source.Warm: 0, source.Cooling: 0, source.NotReady: 0, source.Withdrawn: 0}
	block := map[string]bool{}
	if snap.Pools != nil {
		for _, g := range snap.Groups {
			block[g.ID] = true
		}
	}
	for _, a := range snap.Addresses {
		if !block[a.Group] {
			count[a.State]++
		}
	}
	for _, p := range snap.Pools {
		for state, n := range poolStates(p) {
			count[state] += n
		}
	}
	return count
}

func poolStates(p source.PoolInfo) map[source.State]int {
	return map[source.State]int{
		source.Used: p.Used, source.Warm: p.Free, source.Cooling: p.Cooling, source.NotReady: p.NotReady, source.Withdrawn: p.Retired,
	}
}

// collectPools emits the gauges of the pools that this node uses, or could.
func collectPools(gauge func(desc *prometheus.Desc, v float64, labels ...string), pools []source.PoolInfo) {
	for _, p := range pools {
		gauge(poolBlocksDesc, float64(p.Blocks-p.Draining), p.Name, "held")
		gauge(poolBlocksDesc, float64(p.Draining), p.Name, "draining")
		for state, n := range poolStates(p) {
			gauge(poolAddressesDesc, float64(n), p.Name, string(state))
		}
		gauge(poolWaitingDesc, float64(p.Waiting), p.Name)
		exhausted := 0.0
		if p.Exhausted {
			exhausted = 1
		}
		gauge(poolExhaustedDesc, exhausted, p.Name)
	}
}
