package warm

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/internal/metric"
	"github.com/berthnet/berth/internal/vpcport"
)

var (
	famPorts = metric.New("berth_operator_warm_ports", "gauge", "Warm ports of a VPC that pods can take.", "vpc")
	famTakes = metric.New("berth_operator_warm_port_takes_total", "counter", "New NICs of pods in a VPC that could take a warm port, by result: warm (one was ready) or cold (it waited for the provider).", "vpc", "result")
	famSteps = metric.New("berth_operator_warm_port_steps_total", "counter", "Calls to providers for the warm pool, by kind (make or delete) and result: ok, or the class of the failure.", "kind", "result")
)

// Families returns the metrics, for the reference page.
var Families = []metric.Family{famPorts, famTakes, famSteps}

const (
	stepMake   = "make"
	stepDelete = "delete"
)

// Metrics measures the work of the pool. It is safe for concurrent use.
type Metrics struct {
	ports *prometheus.GaugeVec
	takes *prometheus.CounterVec
	steps *prometheus.CounterVec

	mu   sync.Mutex // guards vpcs
	vpcs map[string]bool
}

// NewMetrics returns metrics that are not registered.
func NewMetrics() *Metrics {
	return &Metrics{ports: famPorts.Gauge(), takes: famTakes.Counter(), steps: famSteps.Counter(), vpcs: map[string]bool{}}
}

// Collectors returns the collectors to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.ports, m.takes, m.steps}
}

func (m *Metrics) took(vpc string, warm bool) {
	result := "cold"
	if warm {
		result = "warm"
	}
	m.takes.WithLabelValues(vpc, result).Inc()
}

func (m *Metrics) step(kind string, err error) {
	result := "ok"
	if err != nil {
		result = vpcport.ClassOf(err).String()
	}
	m.steps.WithLabelValues(kind, result).Inc()
}

// keep sets the number of ports by VPC, and removes the metrics of other VPCs.
func (m *Metrics) keep(ports map[string]int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for vpc := range m.vpcs {
		if _, is := ports[vpc]; !is {
			m.ports.DeleteLabelValues(vpc)
			m.takes.DeletePartialMatch(prometheus.Labels{"vpc": vpc})
			delete(m.vpcs, vpc)
		}
	}
	for vpc, n := range ports {
		m.vpcs[vpc] = true
		m.ports.WithLabelValues(vpc).Set(float64(n))
	}
}
