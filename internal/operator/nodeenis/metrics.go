package nodeenis

import (
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berthnet/berth/api/v1alpha1"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/eni"
	"github.com/berthnet/berth/internal/ec2/eni/plan"
	"github.com/berthnet/berth/internal/metric"
)

// The metrics that Cilium documents for its AWS ENI allocator, under Berth's names, and additional ones
// about listings, free addresses of subnets, and how long pods wait for addresses.
var (
	famIPs       = metric.New("berth_operator_eni_ips", "gauge", "Addresses of all nodes by type: used by pods (cooling ones included), available to pods (used ones included), or needed beyond those. A pod's addresses of both families count as one.", "type")
	famAssigns   = metric.New("berth_operator_eni_allocation_ops_total", "counter", "Allocations of addresses or prefixes on existing ENIs, by subnet.", "subnet_id")
	famCreations = metric.New("berth_operator_eni_interface_creation_ops_total", "counter", "Creations of ENIs by subnet and status: success, or the class of the error.", "subnet_id", "status")
	famENIs      = metric.New("berth_operator_eni_available", "gauge", "ENIs with an address that no pod uses.")
	famNodes     = metric.New("berth_operator_eni_nodes", "gauge", "Nodes by category: total, in-deficit (they need addresses), or at-capacity (they can have no more).", "category")
	famCalls     = metric.New("berth_operator_aws_api_duration_seconds", "histogram", "Duration of EC2 calls, without the wait for Berth's rate limiter, by operation and response code: EC2's error code, or OK.", "operation", "response_code")
	famLimiter   = metric.New("berth_operator_ec2_rate_limit_duration_seconds", "histogram", "Time that EC2 calls waited for Berth's rate limiter, by operation.", "operation")
	famResyncs   = metric.New("berth_operator_eni_resync_total", "counter", "Full listings of the EC2 resources of all nodes, including failed ones.")
	famOrphans   = metric.New("berth_operator_orphan_enis", "gauge", "Detached ENIs of the cluster whose instances are gone, as last seen, by state: waiting (not seen for --orphan-age yet), kept (one of their instances still exists) or refused (EC2 does not delete them).", "state")
	famCollected = metric.New("berth_operator_orphan_enis_deleted_total", "counter", "ENIs that were deleted because their instances are gone.")
	famSubnets   = metric.New("berth_operator_subnet_free_addresses", "gauge", "Free addresses of the subnets that nodes may use, minus those that calls in flight will take.", "subnet_id", "zone")
	famDemand    = metric.New("berth_operator_demand_to_address_seconds", "histogram", "Time from when more pods waited on a node than it had free addresses until it had enough.")

	callBuckets = []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60} // of EC2 calls, in seconds
)

// Families returns the metrics, for the reference page.
var Families = []metric.Family{famIPs, famAssigns, famCreations, famENIs, famNodes, famCalls, famLimiter, famResyncs, famOrphans, famCollected, famSubnets, famDemand}

// Metrics measures the work for nodes. It implements fleet.Observer and pace.Observer, and is safe for
// concurrent use.
type Metrics struct {
	assigns   *prometheus.CounterVec
	creations *prometheus.CounterVec
	calls     *prometheus.HistogramVec
	limiter   *prometheus.HistogramVec
	resyncs   *prometheus.CounterVec
	demand    *prometheus.HistogramVec
	orphans   *prometheus.GaugeVec
	collected *prometheus.CounterVec
}

// NewMetrics returns metrics that are not registered.
func NewMetrics() *Metrics {
	m := &Metrics{
		assigns: famAssigns.Counter(), creations: famCreations.Counter(),
		calls: famCalls.Histogram(callBuckets), limiter: famLimiter.Histogram(callBuckets),
		resyncs: famResyncs.Counter(), demand: famDemand.Histogram(metric.WaitBuckets),
		orphans: famOrphans.Gauge(), collected: famCollected.Counter(),
	}
	m.Collected(eni.Collected{Known: true}) // so that each series exists before its first event
	m.resyncs.WithLabelValues()
	m.demand.WithLabelValues()
	return m
}

// Collectors returns the collectors to register.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.assigns, m.creations, m.calls, m.limiter, m.resyncs, m.demand, m.orphans, m.collected}
}

// Acted implements fleet.Observer.
func (m *Metrics) Acted(_ string, a plan.Action, class cloud.Class, err error, _ time.Duration) {
	created := a.Kind == plan.Create || a.Kind == plan.CreateTrunk
	switch {
	case created && err != nil:
		m.creations.WithLabelValues(a.Subnet, class.String()).Inc()
	case created:
		m.creations.WithLabelValues(a.Subnet, "success").Inc()
	case a.Kind == plan.Assign && err == nil:
		m.assigns.WithLabelValues(a.Subnet).Inc()
	}
}

// Listed implements fleet.Observer.
func (m *Metrics) Listed(time.Duration, error) { m.resyncs.WithLabelValues().Inc() }

// Collected implements fleet.Observer.
func (m *Metrics) Collected(found eni.Collected) {
	for state, n := range found.ByState() {
		m.orphans.WithLabelValues(state).Set(float64(n))
	}
	m.collected.WithLabelValues().Add(float64(found.Deleted))
}

// DemandServed records how long a node had more waiting pods than free addresses, once it has enough.
func (m *Metrics) DemandServed(after time.Duration) {
	m.demand.WithLabelValues().Observe(after.Seconds())
}

// Call implements pace.Observer.
func (m *Metrics) Call(operation, code string, took time.Duration) {
	m.calls.WithLabelValues(operation, code).Observe(took.Seconds())
}

// Limited implements pace.Observer.
func (m *Metrics) Limited(operation string, waited time.Duration) {
	m.limiter.WithLabelValues(operation).Observe(waited.Seconds())
}

// Totals are sums over all nodes, for metrics (Cilium's AWS ENI allocator, "Metrics").
type Totals struct {
	Used, Available, Needed      int // in pods: with addresses, with room, and still needed
	ENIs                         int // ENIs with an address that no pod uses
	Nodes, InDeficit, AtCapacity int // numbers of nodes
}

// Totals returns the current sums. It takes about a microsecond per address of the nodes that changed since the last call.
func (c *Controller) Totals() Totals {
	c.mu.Lock()
	nodes := slices.Collect(maps.Values(c.nodes))
	c.mu.Unlock()
	t := Totals{Nodes: len(nodes)}
	for _, n := range nodes {
		n.mu.Lock()
		n.state.addTo(&t)
		n.mu.Unlock()
	}
	return t
}

// addTo adds a node to the totals.
func (s *state) addTo(t *Totals) {
	t.Needed += s.fleet.status.Needed
	if s.fleet.status.Needed > 0 {
		t.InDeficit++
	}
	if s.fleet.status.AtCapacity {
		t.AtCapacity++
	}
	if s.sums.obj != s.obj || s.sums.inv != s.fleet.inv {
		s.sums = s.sum()
	}
	t.Available, t.Used, t.ENIs = t.Available+s.sums.available, t.Used+s.sums.used, t.ENIs+s.sums.enis
}

// sums are a node's counts for metrics, and the versions that they were counted in.
type sums struct {
	obj                   *v1alpha1.NodeNetwork
	inv                   *eni.Inventory
	available, used, enis int
}

func (s *state) sum() sums {
	c := s.counter()
	of := sums{obj: s.obj, inv: s.fleet.inv, available: c.available()}
	for _, e := range c.byENI() {
		of.used += e.Used
		if e.Free != (cloud.Amount{}) {
			of.enis++
		}
	}
	return of
}

// Gauges collects the totals of the nodes, and the subnets that they may use, on each scrape. subnets must
// return quickly.
func (c *Controller) Gauges(subnets func() []cloud.Subnet) prometheus.Collector {
	return gauges(c.Totals, subnets)
}

func gauges(totals func() Totals, subnets func() []cloud.Subnet) prometheus.Collector {
	return metric.Collector(func(emit func(metric.Family, float64, ...string)) {
		t := totals()
		emit(famIPs, float64(t.Used), "used")
		emit(famIPs, float64(t.Available), "available")
		emit(famIPs, float64(t.Needed), "needed")
		emit(famENIs, float64(t.ENIs))
		emit(famNodes, float64(t.Nodes), "total")
		emit(famNodes, float64(t.InDeficit), "in-deficit")
		emit(famNodes, float64(t.AtCapacity), "at-capacity")
		for _, s := range subnets() {
			emit(famSubnets, float64(s.Free), s.ID, s.Zone)
		}
	}, famIPs, famENIs, famNodes, famSubnets)
}
